"""A word about a ggml that leaves instructions of this processor unused."""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from pathlib import Path

from .terminal import note, printable


def advise_a_build() -> None:
    """Says on a terminal, once for each ggml that is installed, that a build made here is faster.
    Where ggml was not loaded, or nothing can be remembered, it says nothing."""
    if "ggmodel.native" not in sys.modules or not sys.stderr.isatty():
        return
    from .. import native
    from ..builds import processor, stamp

    unused = processor.missing(native.features())
    if not unused or stamp.is_native(native.prefix) or not _first_time(native.prefix):
        return
    note(
        printable(
            f"ggml {native.version} uses no {', '.join(unused)} of this processor; "
            "`ggmodel ggml build` makes a faster one, `ggmodel ggml show` says more"
        )
    )


def _first_time(prefix: Path) -> bool:
    from .. import folders
    from ..errors import Error

    name = hashlib.sha256(str(prefix).encode("utf-8", "replace")).hexdigest()[:16]
    with suppress(OSError, Error):
        advised = folders.data() / "advised"  # caches are emptied
        advised.mkdir(parents=True, exist_ok=True)
        (advised / name).touch(exist_ok=False)
        return True
    return False
