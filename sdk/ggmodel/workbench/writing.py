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
    target = _target(path)
    try:
        with atomic.appearing(target) if _replaceable(target) else nullcontext(target) as name:
            yield name
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def check_target(path: str | Path | None) -> None:
    """Raises where `appearing` would, before any work is done; None is no file."""
    if path is None:
        return
    target = _target(path)
    if target.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")
    if not _replaceable(target):
        return
    partial = atomic.partial_name(target)
    try:
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def write_text(path: str | Path, text: str) -> None:
    """Writes a file of text; raises as `appearing` does."""
    with appearing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _target(path: str | Path) -> Path:
    """What a link points to is written, the link stays."""
    return Path(os.path.realpath(path))


def _replaceable(target: Path) -> bool:
    """Not a device or a pipe."""
    return target.is_file() or not target.exists()
