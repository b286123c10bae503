"""Models of a store, and path containment: nothing outside of a store is read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..bounds import limits
from ..errors import FormatError
from ..reading import too_large


def inside(path: Path, roots: Sequence[Path]) -> Path:
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
            found = [e.name for _, e in zip(range(limits.store_files + 1), entries, strict=False)]
    except OSError:
        return []
    _check_number(folder, len(found))
    return sorted(name for name in found if name.isprintable())


def files_below(folder: Path, depth: int = 6) -> Iterator[str]:
    """Paths of files and links below a folder, sorted, with "/" between their names. Links to
    folders are not followed.

    Raises:
        FormatError: there are more than the limit `store_files`.
    """
    found = 0
    for top, inside, files in os.walk(folder):
        inner = Path(top).relative_to(folder)
        inside[:] = sorted(inside) if len(inner.parts) < depth else []
        for name in sorted(files):
            found += 1
            _check_number(folder, found)
            if name.isprintable():
                yield (inner / name).as_posix()


def _check_number(folder: Path, found: int) -> None:
    if found > limits.store_files:
        raise FormatError(too_large(str(folder), f"{found:,} files or more", "store_files"))


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
    """

    name: str
    store: str
    path: Path | None
    nbytes: int = 0
    problem: str = ""
    own: bool = False
    files: tuple[Path, ...] = ()
    digest: str = ""
