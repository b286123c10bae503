"""Names of models: one string finds the files, on this machine or on the hub.

`find` looks into the stores of other programs, which it reads and never writes, and downloads into
the cache of the Hugging Face hub. A store is a `Source`; packages add others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..imports import lazily

if TYPE_CHECKING:
    from ..runner.loading.resolved import Defaults, ResolvedModel
    from .go_template import as_jinja
    from .inventory import removable, remove
    from .ollama import request_options
    from .resolver import Source, find, find_stored, pull, stored
    from .store_files import Stored

__all__ = [
    "Defaults",
    "ResolvedModel",
    "Source",
    "Stored",
    "as_jinja",
    "find",
    "find_stored",
    "pull",
    "removable",
    "remove",
    "request_options",
    "stored",
]

# Most models are paths: a start needs none of the stores.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "go_template": "as_jinja",
        "ollama": "request_options",
        "inventory": "removable remove",
        ".runner.loading.resolved": "Defaults ResolvedModel",
        "resolver": "Source find find_stored pull stored",
        "store_files": "Stored",
    },
)
