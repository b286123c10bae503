"""Backends without a model, in this process and in another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendParams, Context, FlashAttention
from ggmodel.ml.process import ProcessBackend, RunnerProcess
from tests.ml.harness import METADATA, backend_of

Make = Callable[..., ProcessBackend]


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


@pytest.fixture(scope="session")
def shared() -> Iterator[RunnerProcess]:
    """For tests that leave it as it was."""
    with RunnerProcess() as runner:
        yield runner


@pytest.fixture(scope="session")
def in_process() -> Make:
    """`in_process(runner, tensors, flash, name)` is a loaded backend."""

    def make(
        runner: RunnerProcess | None = None,
        tensors: dict[str, Any] | None = None,
        flash: FlashAttention = FlashAttention.OFF,
        name: str = "ggml",
    ) -> ProcessBackend:
        source = MemorySource(METADATA, tensors or {"unused": np.zeros(32, np.float32)})
        params = BackendParams(num_threads=1, flash_attention=flash)
        backend = ProcessBackend(source, params, runner, name)
        backend.load()
        return backend

    return make


@pytest.fixture(scope="session", params=["here", "in a process"])
def anywhere(request: pytest.FixtureRequest) -> Callable[..., Backend]:
    """`anywhere(tensors)` is a loaded backend: in this process, and again in another one."""
    if request.param == "here":
        return backend_of
    shared, make = map(request.getfixturevalue, ("shared", "in_process"))
    return lambda tensors=None: make(shared, tensors)
