"""Tiny models to run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.gguf import MemorySource
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from tests.golden.files import Golden


@pytest.fixture(scope="session")
def golden() -> Golden:
    return Golden.load("llama", "plain_gqa")


@pytest.fixture(scope="session")
def source(golden: Golden) -> MemorySource:
    """A llama of two layers, without a vocabulary."""
    return from_hf(find("llama"), golden.config, golden.weights())


@pytest.fixture
def model(source: MemorySource) -> Iterator[LoadedModel]:
    with ggmodel.load(source, kv_type="f32", context_length=256, batch_size=8) as loaded:
        yield loaded
