"""A backend without a model, whose caches have few cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ggmodel.gguf import MemorySource
from ggmodel.kvcache import Causal, CausalCache
from ggmodel.ml import Backend, BackendParams, DType, FlashAttention, new_backend

MakeCache = Callable[..., CausalCache]


@pytest.fixture(scope="session", params=["flash", "plain"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """With and without flash attention, hence with values by cell and, permuted, by element."""
    source = MemorySource({"general.architecture": "test", "test.block_count": 2}, {})
    flash = FlashAttention.ON if request.param == "flash" else FlashAttention.OFF
    with new_backend(source, BackendParams(num_threads=1, flash_attention=flash)) as backend:
        backend.cache_config = replace(backend.cache_config, padding=4)
        backend.load()
        yield backend


@pytest.fixture
def make_cache(backend: Backend) -> Iterator[MakeCache]:
    """`make_cache(sequences, capacity, layers=[Causal()], dtype=F32)`."""
    made: list[CausalCache] = []

    def make(
        sequences: int,
        capacity: int,
        layers: list[Causal] | None = None,
        dtype: DType = DType.F32,
    ) -> CausalCache:
        layers = [Causal()] if layers is None else layers
        cache = CausalCache(backend, layers, dtype=dtype, sequences=sequences, capacity=capacity)
        made.append(cache)
        return cache

    yield make
    for cache in made:
        cache.close()
