"""Models of a store, and path containment: nothing outside of a store is read."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..bounds import limits
from ..errors import FormatError
from ..reading import too_large

SPARE = 64 << 20  # bytes of the disk that stay free


def contained(path: Path, roots: Sequence[Path]) -> Path:
    """The regular file behind a path, links followed.

    Args:
        roots: folders that it must lie in.

    Raises:
        FormatError: it does not exist, is no regular file, its links go round in a circle, or lead
            out of the roots.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FormatError(f"{path} is a circle of links; pull the model again") from None
        if isinstance(error, PermissionError):
            raise FormatError(f"{path} may not be read; ask its owner for access") from None
        raise FormatError(
            f"{path} is missing ({error.strerror}); the download may have been cut short: pull the "
            "model again"
        ) from None
    if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        raise FormatError(
            f"{path} leads out of its store, to {real}; give that path if it is meant"
        )
    if not real.is_file():
        raise FormatError(f"{path} is no regular file; pull the model again")
    return real


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted; none if it cannot be read.

    Raises:
        FormatError: there are more than the limit `store_files`.
    """
    try:
        with os.scandir(folder) as entries:
            names = [e.name for _, e in zip(range(limits.store_files + 1), entries, strict=False)]
    except OSError:
        return []
    _check_number(folder, len(names))
    return sorted(name for name in names if name.isprintable())


def files_below(folder: Path, depth: int = 6) -> Iterator[str]:
    """Paths of files and links below a folder, sorted, with "/" between their names. Links to
    folders are not followed.

    Raises:
        FormatError: there are more than the limit `store_files`.
    """
    count = 0
    for top, folders, files in os.walk(folder):
        inner = Path(top).relative_to(folder)
        folders[:] = sorted(folders) if len(inner.parts) < depth else []
        for name in sorted(files):
            count += 1
            _check_number(folder, count)
            if name.isprintable():
                yield (inner / name).as_posix()


def _check_number(folder: Path, count: int) -> None:
    if count > limits.store_files:
        raise FormatError(too_large(str(folder), f"{count:,} files or more", "store_files"))


@dataclass(frozen=True)
class Stored:
    """A model in a store, not opened.

    Attributes:
        name: what `find` takes.
        store: the source's name.
        path: of its file or folder; None where there is none.
        nbytes: on the disk, projector included.
        problem: why it cannot be used, in a few words; "" if nothing is known.
        own: `ggmodel pull` made it.
        files: what removing it removes, links followed.
        digest: SHA-256 of its manifest, in hexadecimal digits; "" where it has none.
        modified: seconds since 1970 when its manifest was written; 0 where it has none.
    """

    name: str
    store: str
    path: Path | None
    nbytes: int = 0
    problem: str = ""
    own: bool = False
    files: tuple[Path, ...] = ()
    digest: str = ""
    modified: float = 0.0


def room_at(folder: Path) -> tuple[Path, int]:
    """A folder, or the nearest above it that is there, and the bytes left on its disk."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder, shutil.disk_usage(folder).free
