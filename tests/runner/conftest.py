"""Tiny models to run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.ml.tensor import to_float32
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from tests.golden.files import Golden, load_golden

STORIES = Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf"


@pytest.fixture(scope="session")
def golden() -> Golden:
    return load_golden("llama", "plain_gqa")


@pytest.fixture(scope="session")
def source(golden: Golden) -> MemorySource:
    """A llama of two layers, without a vocabulary."""
    return from_hf(find("llama"), golden.config, golden.weights())


@pytest.fixture
def model(source: MemorySource) -> Iterator[LoadedModel]:
    with ggmodel.load(source, kv_type="f32", context_length=256, batch_size=8) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def unrounded() -> MemorySource:
    """The model that tells stories, its weights as F32."""
    with open_gguf(STORIES) as file:
        tensors = {}
        for name, t in file.tensors.items():
            raw = np.frombuffer(file.data(name), t.dtype.numpy or np.uint8)
            tensors[name] = to_float32(raw, t.dtype, t.shape).copy()
        return MemorySource(dict(file.metadata), tensors)
