"""Real processes, and backends in them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.ml import Backend, DType, Executable, Tensor
from ggmodel.ml.process import RunnerProcess
from tests.children import import_path
from tests.ml.conftest import Make
from tests.ml.harness import normal


@pytest.fixture
def runner() -> Iterator[RunnerProcess]:
    """For tests that may end it."""
    with RunnerProcess() as runner:
        yield runner


@pytest.fixture(scope="session")
def backend(shared: RunnerProcess, in_process: Make) -> Iterator[Backend]:
    with in_process(shared) as backend:
        yield backend


@pytest.fixture
def small(shared: RunnerProcess, in_process: Make) -> Iterator[Backend]:
    tensors = {"w": normal(16, 8), "table": normal(10, 8, seed=1)}
    with in_process(shared, tensors) as backend:
        yield backend


def doubling(backend: Backend) -> tuple[Executable, Tensor]:
    """A compiled graph that doubles its feed [4], and its output."""
    with backend.new_context() as ctx, ctx.trace():
        y = ctx.feed(lambda step: step, DType.F32, 4).scale(2)
        ctx.forward(y)
        return backend.compile(ctx.graph, (y,)), y


def endless(backend: Backend, products: int = 900) -> Executable:
    """A compiled graph of products of some 20 ms each."""
    w = backend.get("w")
    assert w is not None
    with backend.new_context() as ctx, ctx.trace():
        y = ctx.feed(lambda step: step, DType.F32, w.dim(0), 512)
        for _ in range(products):
            y = w.mulmat(y)
        ctx.forward(y)
        return backend.compile(ctx.graph, (y,))


WIDE = {"w": np.eye(1024, dtype=np.float32)}


def python(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Runs code in a process with this one's import path."""
    path = os.pathsep.join([*filter(None, sys.path), import_path()])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path},
        text=True,
        stdout=subprocess.PIPE,
        **options,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 5) -> None:
    """Fails unless the condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not so after {seconds} s"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
