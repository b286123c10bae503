"""Experts of a file that is larger than memory: read ahead, and with the same bits."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.gguf_file import MemorySource, TensorSource, open_gguf
from ggmodel.ml import Backend, BackendParams, SystemInfo, new_backend
from ggmodel.ml.ggml import weights
from ggmodel.native import ffi
from tests.ml.harness import METADATA, nmse, normal

EXPERTS, WIDTH, FFN, USED = 8, 512, 256, 2
TENSORS = {f"blk.{i}.{part}": normal(EXPERTS, FFN, WIDTH, seed=i) for i in (0, 1) for part in "ab"}
SECONDS = 20  # for the disk


@pytest.fixture
def file(tmp_path: Path, write_gguf: Callable[..., Path]) -> Path:
    path = write_gguf(tmp_path / "model.gguf", MemorySource(METADATA, TENSORS))
    with path.open("rb+") as f:
        os.fsync(f.fileno())  # only what is on the disk leaves memory
    return path


def computed(backend: Backend, x: np.ndarray, scores: list[np.ndarray]) -> np.ndarray:
    """The sum of two layers' products, whose experts are those with the highest scores."""
    with backend.new_context() as ctx, ctx.trace():
        columns, total = ctx.input().from_floats(x), None
        for i, of_layer in enumerate(scores):
            ids = ctx.input().from_floats(of_layer).top_k(USED)
            for part in "ab":
                w = backend.get(f"blk.{i}.{part}")
                assert w is not None
                y = w.mulmat_id(columns, ids)
                total = y if total is None else total + y
        assert total is not None
        ctx.forward(total)
        if not backend._allocated:
            backend.allocate(ctx.graph)
            backend.load()
        ctx.compute(total)
        return total.numpy().copy()


def scores_of(*chosen: tuple[int, ...]) -> np.ndarray:
    """float32 [tokens, EXPERTS], by whose order each token uses these experts."""
    scores = np.zeros((len(chosen), EXPERTS), np.float32)
    for row, experts in zip(scores, chosen, strict=True):
        row[list(experts)] = range(len(experts), 0, -1)
    return scores


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_the_bits_are_those_of_enough_memory(
    file: Path, tokens: int, monkeypatch: pytest.MonkeyPatch
):
    x, scores = normal(tokens, 1, WIDTH, seed=9), [normal(tokens, EXPERTS, seed=i) for i in (3, 4)]
    results = []
    for free in (1 << 40, 0):
        monkeypatch.setattr(weights, "system_info", lambda free=free: SystemInfo(free_memory=free))
        with open_gguf(file) as source:
            backend: Any = new_backend(source, BackendParams(num_threads=3, deterministic=True))
            with backend:
                results.append([computed(backend, x, scores) for _ in range(2)])
                assert (backend.weights.choices is None) == (free > 0)
    np.testing.assert_array_equal(results[0], results[1])


def test_a_layer_of_many_products(file: Path, monkeypatch: pytest.MonkeyPatch):
    """A node takes eight weights; all products are right."""
    monkeypatch.setattr(weights, "system_info", lambda: SystemInfo(free_memory=0))
    x, ids = normal(2, 1, WIDTH, seed=9), np.array([[0, 3], [7, 3]], np.int32)
    with (
        open_gguf(file) as source,
        new_backend(source, BackendParams(num_threads=2)) as backend,
        backend.new_context() as ctx,
        ctx.trace(),
    ):
        columns, chosen = ctx.input().from_floats(x), ctx.input().from_ints(ids)
        found = [backend.get(name) for name in [*TENSORS] * 3]
        products = [w.mulmat_id(columns, chosen) for w in found if w is not None]
        backend.allocate(ctx.forward(*products).graph)
        backend.load()
        ctx.compute(*products)
        got = [y.numpy() for y in products]
    for y, name in zip(got, [*TENSORS] * 3, strict=True):
        want = np.einsum("tufk,tk->tuf", TENSORS[name][ids], x[:, 0])
        assert nmse(y, want) < 1e-9  # float32 sums


@pytest.mark.parametrize(
    ("before", "read"), [([(2, 6)], True), ([(2, 6), (0, 1), (3, 4), (5, 7)], False)]
)
def test_rows_that_the_next_layer_chose_before_are_read(
    file: Path, before: list[tuple[int, ...]], read: bool, monkeypatch: pytest.MonkeyPatch
):
    """If they were few; those that a layer chooses now are read by its products, too."""
    monkeypatch.setattr(weights, "system_info", lambda: SystemInfo(free_memory=0))
    expected = [(f"blk.1.{part}", e) for part in "ab" for e in (2, 6)]
    with open_gguf(file) as source, new_backend(source, BackendParams(num_threads=2)) as backend:
        x = normal(len(before), 1, WIDTH, seed=9)
        computed(backend, x, [scores_of(*[(0, 1)] * len(before)), scores_of(*before)])
        evict(source, file)
        if any(resident(source, *one) for one in expected):
            pytest.skip("this file system keeps its files in memory")
        computed(backend, x[:1], [scores_of((0, 1)), scores_of((0, 4))])
        until = time.monotonic() + (SECONDS if read else 0.2)
        while not all(resident(source, *one) for one in expected) and time.monotonic() < until:
            time.sleep(0.01)
        assert all(resident(source, *one) for one in expected) == read


def evict(source: TensorSource, file: Path) -> None:
    """Empties the system's cache of the file, which then reads no more than it is asked for."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system does not empty its cache of a file")
    mapping: Any = source.mapped(0)
    mapping.obj.madvise(mmap.MADV_RANDOM)
    for name in TENSORS:
        source.release(name)
    with file.open("rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident(source: TensorSource, name: str, expert: int) -> bool:
    """Whether all whole pages of an expert lie in memory."""
    size = FFN * WIDTH * 4
    data = source.data(name)[expert * size : (expert + 1) * size]
    start = int(ffi.cast("uintptr_t", ffi.from_buffer(data)))
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = (start + size - first) // mmap.PAGESIZE
    flags = (ctypes.c_ubyte * pages)()
    length = ctypes.c_size_t(pages * mmap.PAGESIZE)
    if ctypes.CDLL(None).mincore(ctypes.c_void_p(first), length, flags):
        raise OSError("mincore failed")
    return all(flag & 1 for flag in flags)
