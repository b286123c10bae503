"""Removing a model from its store."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from ..errors import ModelNotFound, Unsupported, WriteError
from ..storage import need_unused
from . import derived, hub_cache, lm_studio, ollama
from . import hub_cache as own
from .grammar import hub_name
from .resolver import stored
from .store_files import Stored


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
            own.remember(snapshot, model.name, add=False)
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
