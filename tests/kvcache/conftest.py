"""A backend without a model, whose caches have few cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ggmodel.gguf_file import MemorySource
from ggmodel.kvcache import Cache, CacheSpec, Causal, new_cache
from ggmodel.ml import Backend, BackendParams, DType, FlashAttention, new_backend
from tests.ggml_attention import ggml_attention

MakeCache = Callable[..., Any]


def small_backend(flash: bool, alloc_memory: bool = True) -> Backend:
    """Ranges of cells are multiples of 4; attention takes masks."""
    source = MemorySource({"general.architecture": "test", "test.block_count": 8}, {})
    attention = FlashAttention.ON if flash else FlashAttention.OFF
    params = BackendParams(num_threads=1, flash_attention=attention, alloc_memory=alloc_memory)
    with ggml_attention():
        backend = new_backend(source, params)
    backend.cache_config = replace(backend.cache_config, padding=4)
    return backend


@pytest.fixture(scope="session", params=["flash", "plain"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """With and without flash attention, hence with values by cell and, permuted, by element."""
    with small_backend(request.param == "flash") as backend:
        backend.load()
        yield backend


@pytest.fixture
def make_cache(backend: Backend) -> Iterator[MakeCache]:
    """`make_cache(sequences, capacity, layers=[Causal()], dtype=F32, max_batch=16)`."""
    made: list[Cache] = []

    def make(
        sequences: int,
        capacity: int,
        layers: Sequence[CacheSpec] = (Causal(),),
        dtype: DType = DType.F32,
        max_batch: int = 16,
    ) -> Cache:
        cache = new_cache(
            backend,
            layers,
            dtype=dtype,
            sequences=sequences,
            capacity=capacity,
            max_batch=max_batch,
        )
        made.append(cache)
        return cache

    yield make
    for cache in made:
        cache.close()
