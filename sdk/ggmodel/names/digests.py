"""Comparing files with the digests that their stores have for them, once for each content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import folders
from ..atomic import write_text
from ..errors import Error, FormatError
from ..reading import read_json
from .found import Progress

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
    return folders.cache() / "verified.json"


def _remembered() -> dict[str, Any]:
    with suppress(Error):
        return read_json(_memory())
    return {}


def _remember(known: dict[str, Any]) -> None:
    """A folder that cannot be written costs hashing the file again."""
    with suppress(OSError, Error):
        _memory().parent.mkdir(parents=True, exist_ok=True)
        write_text(_memory(), json.dumps(dict([*known.items()][-_KEPT:])))
