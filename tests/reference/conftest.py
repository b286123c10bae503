"""The two backends, without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendParams, FlashAttention, Tensor, new_backend
from ggmodel.ml.graph import Graph
from tests.ml.harness import METADATA, Value, tensor


def backend_of(
    name: str,
    tensors: dict[str, Any] | None = None,
    flash: FlashAttention = FlashAttention.OFF,
) -> Backend:
    """A loaded backend with the given weights."""
    source = MemorySource(METADATA, tensors or {"unused": np.zeros(32, np.float32)})
    backend = new_backend(source, BackendParams(num_threads=1, flash_attention=flash), name)
    backend.load()
    return backend


def run(backend: Backend, build: Callable[..., Tensor], *values: Value) -> tuple[np.ndarray, Graph]:
    """The value of what is built on inputs, or without any on the context; and its graph."""
    with backend.new_context() as ctx, ctx.trace():
        out = build(*(tensor(ctx, v) for v in values) if values else (ctx,))
        ctx.forward(out).compute(out)
        return out.numpy(), ctx.graph


@pytest.fixture(scope="session")
def ggml() -> Iterator[Backend]:
    with backend_of("ggml") as backend:
        yield backend


@pytest.fixture(scope="session")
def reference() -> Iterator[Backend]:
    with backend_of("reference") as backend:
        yield backend


@pytest.fixture(scope="session")
def flash_reference() -> Iterator[Backend]:
    with backend_of("reference", flash=FlashAttention.ON) as backend:
        yield backend
