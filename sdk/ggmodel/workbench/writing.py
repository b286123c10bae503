"""Files of results: they appear when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from .. import atomic
from ..errors import ConfigError


@contextmanager
def appearing(path: str | Path) -> Iterator[Path]:
    """A name for a file that becomes `path` at the end; after an error it is gone.

    Raises:
        ConfigError: it cannot be written.
    """
    target, partial = _names(path)
    try:
        with nullcontext(target) if partial == target else atomic.appearing(target) as name:
            yield name
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def check_target(path: str | Path | None) -> None:
    """Raises where `appearing` would, before any work is done; None is no file."""
    if path is None:
        return
    target, partial = _names(path)
    if target.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")
    if partial == target:
        return
    try:
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def write_text(path: str | Path, text: str) -> None:
    """Writes a file of text; raises as `appearing` does."""
    with appearing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _names(path: str | Path) -> tuple[Path, Path]:
    """The file, and what it is called until it is complete."""
    target = Path(os.path.realpath(path))  # what a link points to is written, the link stays
    if target.exists() and not target.is_file():
        return target, target  # a device or a pipe cannot be replaced
    return target, atomic.partial_name(target)
