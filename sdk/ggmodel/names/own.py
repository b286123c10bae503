"""The models that `ggmodel pull` downloaded itself: it removes them without a question."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import folders
from ..atomic import write_text
from ..errors import Error
from ..reading import read_json


def _list() -> Path:
    return folders.data() / "pulled.json"


def _read() -> dict[str, Any]:
    with suppress(Error):
        return read_json(_list())
    return {}


def is_own(snapshot: Path, name: str) -> bool:
    """Whether a model in a snapshot was downloaded by us."""
    names = _read().get(str(snapshot))
    return isinstance(names, list) and name in names


def remember(snapshot: Path, name: str, add: bool = True) -> None:
    """Notes a download, or that it is gone. Where this cannot be written, removing it asks."""
    known = _read()
    names = [n for n in known.get(str(snapshot)) or () if n != name] + [name] * add
    known[str(snapshot)] = names
    with suppress(OSError, Error):
        _list().parent.mkdir(parents=True, exist_ok=True)
        write_text(_list(), json.dumps({at: names for at, names in known.items() if names}))
