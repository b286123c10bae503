"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def partial_name(target: Path) -> Path:
    """What a file is called, in the same folder, until it is complete."""
    return target.with_name(f".{target.name}.{os.getpid()}.part")


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """The `partial_name` of a file that becomes `target` at the end; after an error, or Ctrl-C, it
    is gone.

    Raises:
        OSError: it cannot take the target's place.
    """
    partial = partial_name(target)
    try:
        yield partial
        os.replace(partial, target)
    finally:
        with suppress(OSError):
            partial.unlink()
