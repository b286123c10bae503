"""Files of a store: path containment and digests.

Nothing outside of a store is read, whatever its names and links say. A content is compared with its
digest once.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import storage
from ..bounds import limits
from ..errors import Error, FormatError
from ..reading import read_json, too_large
from ..storage import write_text
from .resolved import Progress


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


_CHUNK = 4 << 20
_KEPT = 1000  # files whose digests are remembered
_seen: dict[str, Any] = {}  # by this process, where nothing can be written


def verify(digests: Mapping[Path, str], progress: Progress | None = None) -> None:
    """See `Found.verify`."""
    known = _remembered() | _seen
    todo = {path: d for path, d in digests.items() if known.get(str(path)) != _state(path, d)}
    if not todo:
        return
    total, done = sum(path.stat().st_size for path in todo) or 1, 0
    for path, wanted in todo.items():
        state = _state(path, wanted)
        digest = _hasher(path, wanted)
        with open(path, "rb") as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
                done += len(piece)
                if progress is not None:
                    progress(min(done / total, 1.0))
        if digest.hexdigest() != wanted.partition(":")[2] or state != _state(path, wanted):
            raise FormatError(
                f"{path} is damaged: its {wanted.partition(':')[0]} digest is not the one its "
                "store has for it; remove it and pull the model again"
            )
        known[str(path)] = _seen[str(path)] = state
    _remember(known)


def _hasher(path: Path, wanted: str) -> Any:
    if wanted.startswith("sha256:"):
        return hashlib.sha256()
    digest = hashlib.sha1(usedforsecurity=False)  # what git calls blobs by
    digest.update(b"blob %d\0" % path.stat().st_size)
    return digest


def _state(path: Path, digest: str) -> list[Any]:
    try:
        now = path.stat()
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror}; pull the model again"
        ) from None
    return [digest, now.st_size, now.st_mtime_ns, now.st_ino]


def _memory() -> Path:
    return storage.cache_folder() / "verified.json"


def _remembered() -> dict[str, Any]:
    with suppress(Error):
        return read_json(_memory())
    return {}


def _remember(known: dict[str, Any]) -> None:
    """A folder that cannot be written costs hashing the file again."""
    with suppress(OSError, Error):
        _memory().parent.mkdir(parents=True, exist_ok=True)
        write_text(_memory(), json.dumps(dict([*known.items()][-_KEPT:])))
