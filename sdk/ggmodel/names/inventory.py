"""The models on this machine: what they are, whether this version runs them; their removal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import Error, ModelNotFound, Unsupported, WriteError
from ..gguf_file import open_gguf
from ..reading import read_json
from ..storage import need_unused
from . import derived, hub_cache, lm_studio, ollama
from .grammar import hub_name
from .resolver import stored
from .store_files import Stored


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
    from ..model import find, find_hf  # imports numpy

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
        if not reason:
            reason = str(error) if architecture is None else f"no architecture {architecture}"
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


def removable(name: str) -> Stored:
    """The model of a name, as it is removed.

    Raises:
        ModelNotFound: no store has it.
        Unsupported: its store is read only.
    """
    hub = hub_name(name)
    names = {name.casefold(), f"{name.casefold()}:latest", str(hub).casefold()}
    every = [m for m in stored() if m.name.casefold() in names]
    if not every:
        raise ModelNotFound(f"{name[:200]!r} is in no store; `ggmodel list` shows what is")
    exact = {name, f"{name}:latest", str(hub)}
    model = next((m for m in every if m.name in exact), every[0])
    if model.store not in (hub_cache.STORE, lm_studio.STORE, ollama.OWN_STORE):
        how = f"`ollama rm {model.name.removeprefix('ollama://')}`"
        raise Unsupported(f"{model.name} is in {model.store}, which is only read; use {how}")
    return model


def remove(model: Stored) -> int:
    """Removes the files of a model that no other model shares.

    Returns:
        Bytes that became free.

    Raises:
        Unsupported: a file lies elsewhere, behind a linked folder.
        WriteError: a file cannot be removed.
    """
    if model.store == ollama.OWN_STORE:
        return derived.delete(model.name)
    with hub_cache.locked(f"removing {model.name:.100}"):
        return _remove(model)


def _remove(model: Stored) -> int:
    others = [
        other
        for other in (*hub_cache.HubCache().stored(), *lm_studio.LMStudio().stored())
        if (other.name, other.store) != (model.name, model.store)
    ]
    kept = {f for other in others for f in other.files}
    contents = {os.path.realpath(f) for f in kept}
    gone = [f for f in model.files if f not in kept]
    for file in gone:
        _need_inside(file)
    need_unused([Path(os.path.realpath(file)) for file in gone])
    freed = 0
    try:
        for file in gone:
            freed += _unlink(file, contents)
    except OSError as error:
        raise WriteError(f"cannot remove {error.filename}: {error.strerror}") from None
    if model.store == hub_cache.STORE:
        for snapshot in {_snapshot(file) for file in gone}:
            hub_cache.remember(snapshot, model.name, add=False)
    return freed


def _snapshot(file: Path) -> Path:
    """The folder of a commit that a file lies in."""
    return next(p for p in file.parents if p.parent.name == "snapshots")


def _need_inside(file: Path) -> None:
    folder = Path(os.path.realpath(file.parent))
    roots = (*hub_cache.roots(), *lm_studio.roots())
    if not any(folder.is_relative_to(os.path.realpath(root)) for root in roots):
        raise Unsupported(f"{file} leads out of its store, to {folder}; remove it there")


def _unlink(file: Path, kept: Container[str]) -> int:
    """Removes a file, and its content unless that is kept. Returns bytes that became free."""
    blob = Path(os.path.realpath(file))
    size = blob.stat().st_size if blob.is_file() else 0
    linked = file.is_symlink()
    file.unlink(missing_ok=True)
    if not linked:
        return size
    here = Path(os.path.realpath(file.parent))
    if blob.parent.name != "blobs" or blob.parent.parent not in here.parents:
        return 0  # a link into another store, whose file stays
    if str(blob) in kept:
        return 0
    snapshots = blob.parent.parent / "snapshots"
    others = (p for p in snapshots.rglob("*") if p.is_symlink())
    if any(os.path.realpath(p) == str(blob) for p in others):
        return 0
    blob.unlink(missing_ok=True)
    return size
