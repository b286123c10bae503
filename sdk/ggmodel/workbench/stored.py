"""The models on this machine: what they are, and whether this version runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import Error
from ..gguf_file import open_gguf
from ..model import find, find_hf
from ..names import Stored, stored
from ..reading import read_json


@dataclass(frozen=True)
class Row:
    """A model in a store.

    Attributes:
        name: what every command takes.
        store: where it is.
        path: of its file or folder; None where it cannot be used.
        nbytes: on the disk.
        type: the type of most bytes of its weights; None if it cannot be read.
        architecture: of the file, or the class that a config.json names; None if unknown.
        runs: whether this version has the architecture.
        reason: why it does not run; "" if it does.
        own: `ggmodel pull` downloaded it.
    """

    name: str
    store: str
    path: str | None
    nbytes: int
    type: str | None
    architecture: str | None
    runs: bool
    reason: str
    own: bool


def overview(models: str | Path | None = None) -> list[Row]:
    """A row for each model of all stores. Only headers are read.

    Args:
        models: a folder with architectures, looked in first.
    """
    return [_row(model, models) for model in stored()]


def _row(model: Stored, models: str | Path | None) -> Row:
    kind = architecture = None
    reason = model.problem
    try:
        if model.path is not None and model.path.is_dir():
            kind, architecture = _of_folder(model.path)
            find_hf([architecture] if architecture else [], models)
        elif model.path is not None:
            kind, architecture = _of_file(model.path)
            find(architecture or "", models)
    except (Error, OSError) as error:
        unsupported = architecture is not None and not reason
        reason = reason or (f"no architecture {architecture}" if unsupported else str(error))
    path = None if model.path is None else str(model.path)
    return Row(
        model.name,
        model.store,
        path,
        model.nbytes,
        kind,
        architecture,
        not reason,
        reason,
        model.own,
    )


def _of_file(path: Path) -> tuple[str | None, str | None]:
    with open_gguf(path) as source:
        architecture = source.metadata.get("general.architecture")
        sizes = ((t.dtype.name, t.nbytes) for t in source.tensors.values())
        return _main(sizes), architecture if isinstance(architecture, str) else None


def _of_folder(path: Path) -> tuple[str | None, str | None]:
    config = read_json(path / "config.json")
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    kind = config.get("dtype") or config.get("torch_dtype")
    return (kind if isinstance(kind, str) else None), first if isinstance(first, str) else None


def _main(sizes: Iterable[tuple[str, int]]) -> str | None:
    by_type: Counter[str] = Counter()
    for name, nbytes in sizes:
        by_type[name] += nbytes
    return next((name for name, _ in by_type.most_common(1)), None)
