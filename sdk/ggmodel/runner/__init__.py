"""Running models: loading, the engine, requests, sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..imports import lazily

if TYPE_CHECKING:
    from .loading.load import load
    from .options import LoadOptions, RequestOptions
    from .requests.completion import Completion, Piece, Usage
    from .requests.generation import AsyncStream, Stream
    from .requests.grammar import Grammar
    from .requests.loaded_model import LoadedModel
    from .sampling import Sampler

__all__ = [
    "AsyncStream",
    "Completion",
    "Grammar",
    "LoadOptions",
    "LoadedModel",
    "Piece",
    "RequestOptions",
    "Sampler",
    "Stream",
    "Usage",
    "load",
]

# Resolved models are of this package, and names are resolved without numpy.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "loading.load": "load",
        "options": "LoadOptions RequestOptions",
        "requests.completion": "Completion Piece Usage",
        "requests.generation": "AsyncStream Stream",
        "requests.grammar": "Grammar",
        "requests.loaded_model": "LoadedModel",
        "sampling": "Sampler",
    },
)
