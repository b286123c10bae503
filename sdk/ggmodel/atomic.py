"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import Error, WriteError


def check_target(path: str | Path, *, force: bool = True, device: bool = True) -> Path:
    """The file that is to be written, links followed; called before any work is done.

    Args:
        force: an existing file may be replaced.
        device: the target may be a device or a pipe.

    Raises:
        WriteError: it cannot be written there.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise WriteError(f"cannot write {path}: it is a folder; give the path of the file to write")
    if target.exists() and not target.is_file():
        if device:
            return target
        raise WriteError(f"cannot write {path}: it is a device or a pipe; give the path of a file")
    if not target.parent.is_dir():
        raise WriteError(
            f"cannot write {path}: the folder {target.parent} does not exist; create it first"
        )
    if not os.access(target.parent, os.W_OK):
        raise WriteError(
            f"cannot write {path}: {target.parent} cannot be written to; check its permissions"
        )
    if target.exists() and not force:
        raise WriteError(f"{path} exists; --force (force=True) replaces it")
    return target


@contextmanager
def atomic_write(path: str | Path, *, force: bool = True, device: bool = True) -> Iterator[Path]:
    """The name of a file, in the same folder, that becomes `path` at the end; after an error, or
    Ctrl-C, it is gone. The target of a link is replaced, the link stays; a device is written
    itself. Arguments as for `check_target`.

    Raises:
        WriteError: it cannot be written.
    """
    target = check_target(path, force=force, device=device)
    if target.exists() and not target.is_file():
        yield target
        return
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield partial
        os.replace(partial, target)
    except OSError as error:
        if isinstance(error, Error):
            raise
        # numpy tells only how much it wrote.
        reason = error.strerror or f"{error} (is the disk full?)"
        raise WriteError(f"cannot write {path}: {reason}; nothing was left behind") from error
    finally:
        with suppress(OSError):
            partial.unlink()
