"""Models that keep prefixes on disk, in blocks of a few tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ggmodel
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.prefix_store import PrefixStore

BLOCK, LEAST = 8, 4


@contextmanager
def storing(source: Any, folder: Path, **options: Any) -> Iterator[LoadedModel]:
    """A model that reads and writes prefixes; its origin is known."""
    options = {"context_length": 96, "deterministic": True, **options}
    with ggmodel.load(source, prefix_store=folder, **options) as model:
        small_blocks(model)
        yield model


def small_blocks(model: LoadedModel) -> PrefixStore:
    """Has a model's store keep blocks of a few tokens, once its origin is known."""
    store = known_store_of(model)
    store.block = model.engine.planner.block = BLOCK
    store.least = LEAST
    return store


def known_store_of(model: LoadedModel) -> PrefixStore:
    """The store of a model, once its origin is known."""
    store, deadline = store_of(model), time.monotonic() + 10
    while store.writer.root is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert store.writer.root is not None
    return store


def blocks(folder: Path) -> list[Path]:
    """The files of all blocks."""
    return sorted(path for path in folder.glob("*/*.?") if path.parent.name != "files")


def store_of(model: LoadedModel) -> PrefixStore:
    """The store of a model that has one."""
    assert model.engine.store is not None
    return model.engine.store
