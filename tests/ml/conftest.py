"""Backends without a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ggmodel.ml import Backend, Context, FlashAttention
from tests.ml.harness import backend_of


@pytest.fixture(scope="session")
def backend() -> Iterator[Backend]:
    with backend_of() as backend:
        yield backend


@pytest.fixture(scope="session")
def flash_backend() -> Iterator[Backend]:
    with backend_of(flash=FlashAttention.ON) as backend:
        yield backend


@pytest.fixture
def ctx(backend: Backend) -> Iterator[Context]:
    with backend.new_context() as ctx, ctx.trace():
        yield ctx
