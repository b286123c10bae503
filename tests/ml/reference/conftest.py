"""The two backends, without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ggmodel.ml import Backend, FlashAttention, Tensor
from ggmodel.ml.graph import Graph
from tests.ml.harness import Value, backend_of, tensor


def run(backend: Backend, build: Callable[..., Tensor], *values: Value) -> tuple[np.ndarray, Graph]:
    """The value of `build` on inputs, or without any on the context; and its graph."""
    with backend.new_context() as ctx, ctx.trace():
        out = build(*(tensor(ctx, v) for v in values) if values else (ctx,))
        ctx.forward(out).compute(out)
        return out.numpy(), ctx.graph


@pytest.fixture(scope="session")
def ggml() -> Iterator[Backend]:
    with backend_of() as backend:
        yield backend


@pytest.fixture(scope="session")
def reference() -> Iterator[Backend]:
    with backend_of(name="reference") as backend:
        yield backend


@pytest.fixture(scope="session")
def flash_reference() -> Iterator[Backend]:
    with backend_of(name="reference", flash=FlashAttention.ON) as backend:
        yield backend
