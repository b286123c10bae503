"""Errors in the process arrive here as if they had happened here."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from ggmodel import errors
from ggmodel.errors import (
    Cancelled,
    ComputeError,
    ConfigError,
    Error,
    GraphError,
    OutOfMemory,
    TensorError,
    Unsupported,
)
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendMemory, BackendParams, DType, new_backend
from ggmodel.ml.process import ProcessBackend, RunnerProcess
from ggmodel.ml.process.protocol import pack_error, unpack_error
from tests.ml.conftest import Make
from tests.ml.harness import METADATA, normal

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Error)]


@pytest.mark.parametrize("kind", [*CLASSES, OSError, KeyError])
def test_an_error_is_rebuilt(kind: type[Exception]):
    error: Any = kind("the text")
    error.noted = {"a": 1}
    rebuilt = unpack_error(pack_error(error))
    assert type(rebuilt) is kind
    assert (str(rebuilt), rebuilt.args) == (str(error), error.args)
    assert rebuilt.__dict__ == error.__dict__
    assert (rebuilt.__cause__ is None) == isinstance(error, Error)  # else a traceback is there


def test_an_error_that_cannot_be_sent_keeps_its_text():
    class Local(Exception):
        pass

    rebuilt = unpack_error(pack_error(Local("the text")))
    assert isinstance(rebuilt, ComputeError) and str(rebuilt) == "Local: the text"


def test_an_error_whose_constructor_is_unlike_keeps_its_text():
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no start byte")
    assert str(unpack_error(pack_error(error))) == str(error)
    named = ImportError("the text", name="x")
    named.args = ()
    assert isinstance(unpack_error(pack_error(named)), ImportError)


def test_a_kernel_that_is_missing(backend: Backend):
    with backend.new_context() as ctx, ctx.trace():
        y = (
            ctx.layer(0)
            .zeros(DType.IQ2_XS, 256, 2)
            .set_rows(ctx.input().from_floats(normal(1, 256)), ctx.input().from_ints([0]))
        )
        with pytest.raises(TensorError) as caught:
            ctx.compute(y)
    text = str(caught.value)
    assert "set_rows" in text and f"{__file__}:" in text and "IQ2_XS" in text


def test_memory_that_cannot_be_had(shared: RunnerProcess, in_process: Make):
    with in_process(shared) as backend, backend.new_context() as ctx:
        with pytest.raises(OutOfMemory) as caught:
            ctx.layer(1).zeros(DType.F32, 1 << 45)
        memory = caught.value.memory
        assert isinstance(memory, BackendMemory) and memory.cpu.cache[1] == 1 << 47
        ctx.close()
        assert backend.backend_memory().cpu.cache == [0, 0, 0]


def test_an_index_out_of_range_names_the_line(small: Backend):
    table = small.get("table")
    assert table is not None
    with small.new_context() as ctx, ctx.trace():
        y = table.rows(ctx.feed(lambda step: step, DType.I32, 2, name="ids"))
        ctx.forward(y)
        executable = small.compile(ctx.graph, (y,))
        with pytest.raises(ComputeError, match=rf"rows: feed 'ids'.* of 10\n  at {__file__}:"):
            executable.run([0, 10])
        executable.run([0, 9])
        assert executable.value(y).shape == (1, 1, 2, 8)


def test_a_feed_that_fails_names_the_line(backend: Backend):
    with backend.new_context() as ctx, ctx.trace():
        y = ctx.feed(lambda step: {}["missing"], DType.F32, 2).sqr()
        ctx.forward(y)
        executable = backend.compile(ctx.graph, (y,))
        with pytest.raises(ComputeError, match=rf"KeyError: 'missing'\n  at {__file__}:"):
            executable.run()


def test_what_belongs_elsewhere(shared: RunnerProcess, in_process: Make):
    tensors = {"w": normal(4)}
    with in_process(shared, tensors) as one, in_process(shared, tensors) as other:
        w = one.get("w")
        assert w is not None
        with one.new_context() as ctx, other.new_context() as foreign, foreign.trace():
            kept = ctx.layer(0).zeros(DType.F32, 4)
            for leaf in (w, kept):
                with pytest.raises(GraphError, match="belongs to another backend"):
                    foreign.compute(leaf.sqr())
        with one.new_context() as ctx, ctx.trace():
            with pytest.raises(GraphError, match="freed with its context or never allocated"):
                ctx.compute(kept.sqr())
            with pytest.raises(GraphError, match="has no value"):
                kept.bytes()


def test_a_backend_nobody_knows(shared: RunnerProcess):
    with pytest.raises(Unsupported, match="there is ggml, process, reference"):
        ProcessBackend(MemorySource(METADATA, {"w": normal(1)}), BackendParams(), shared, "torch")
    with pytest.raises(Unsupported, match="there is ggml, process, reference"):
        new_backend(MemorySource(METADATA, {"w": normal(1)}), name="torch", runner=shared)


def test_a_file_that_lies_about_its_blocks(shared: RunnerProcess):
    source = MemorySource({**METADATA, "test.block_count": -1}, {"w": normal(1)})
    with pytest.raises(ConfigError, match="block_count"):
        ProcessBackend(source, BackendParams(), shared)


def test_workers_must_be_the_runners(shared: RunnerProcess):
    source = MemorySource(METADATA, {"w": normal(1)})
    with pytest.raises(ConfigError, match="worker host:1 is none of the runner's"):
        new_backend(source, BackendParams(rpc=("host:1",)), runner=shared)


# loading

LARGE = {"w": np.zeros((5, 1 << 22), np.float32)}  # more than one step of progress


def unloaded(runner: RunnerProcess, **params: Any) -> Backend:
    source = MemorySource(METADATA, LARGE)
    return new_backend(source, BackendParams(num_threads=1, **params), runner=runner)


def test_progress(shared: RunnerProcess):
    shares: list[float] = []
    with unloaded(shared) as backend:
        backend.load(shares.append)
    assert shares == sorted(shares) and len(shares) > 2
    assert shares[-1] == 1.0 and shares.count(1.0) == 1


def test_loading_is_cancelled(shared: RunnerProcess):
    asked = iter([False, True])
    with unloaded(shared) as backend:
        with pytest.raises(Cancelled):
            backend.load(cancel=lambda: next(asked))
        backend.load()


def test_a_callback_that_fails_ends_loading(shared: RunnerProcess):
    with unloaded(shared) as backend:
        with pytest.raises(ZeroDivisionError):
            backend.load(lambda share: 1 / 0)  # type: ignore
        assert backend.backend_memory().size()
        backend.load()


def test_a_callback_cannot_ask_the_process(shared: RunnerProcess):
    with unloaded(shared) as backend:
        with pytest.raises(GraphError, match="a callback of a request"):
            backend.load(lambda share: str(backend.backend_memory()))  # type: ignore
        backend.load()


def test_a_dry_run_cannot_be_loaded(shared: RunnerProcess):
    with unloaded(shared, alloc_memory=False) as backend:
        with pytest.raises(GraphError, match="alloc_memory=False"):
            backend.load()
        backend.allocate()
        assert sum(backend.backend_memory().cpu.weights) == 5 << 24
