"""One backend, several threads: they take turns, and nothing is freed under a computation."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ComputeError, GraphError
from ggmodel.ml import Backend, Context, DType, Tensor
from tests.conftest import ROOT
from tests.ml.harness import backend_of, normal

DEADLINE = 30.0  # seconds, against a hang
WEIGHT = normal(48, 64)


@pytest.fixture(params=["ggml", "reference", "process"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def one(name: str) -> Iterator[Backend]:
    with backend_of({"w": WEIGHT}, name=name) as backend:
        yield backend


def product(backend: Backend, ctx: Context, columns: int) -> tuple[Tensor, np.ndarray]:
    """A product, and its values by numpy."""
    w = backend.get("w")
    assert w is not None
    x = normal(columns, 64, seed=columns)
    return w.mulmat(ctx.input().from_floats(x)), x @ WEIGHT.T


class Slow:
    """A graph that is computed until `proceed` is called: its feed waits for that.

    Attributes:
        begun: set while it is computed.
        outcome: its values, or its error.
    """

    def __init__(self, backend: Backend):
        self.begun, self._go = threading.Event(), threading.Event()
        self.outcome: Any = None
        self._ctx = backend.new_context()
        state = self._ctx.layer(0).from_floats(np.arange(4))
        self._y = (self._ctx.feed(self._fill, DType.F32, 4) + state).scale(2.0)
        self.thread = threading.Thread(target=self._compute, daemon=True)
        self.thread.start()
        assert self.begun.wait(DEADLINE)

    def _fill(self, step: Any) -> np.ndarray:
        self.begun.set()
        assert self._go.wait(DEADLINE)
        return np.ones(4)

    def _compute(self) -> None:
        try:
            self._ctx.compute(self._y)
            self.outcome = self._y.numpy().tolist()
        except Exception as error:
            self.outcome = error

    def meanwhile(self, work: Callable[[], Any], waits: bool = False) -> list[Any]:
        """Starts `work` in a thread, lets the graph go on when that has had time to get in its way,
        and returns the outcome of the work.

        Args:
            waits: the work must wait for the graph.
        """
        found: list[Any] = []
        started = threading.Event()

        def call() -> None:
            started.set()
            try:
                found.append(work())
            except Exception as error:
                found.append(error)

        other = threading.Thread(target=call, daemon=True)
        other.start()
        assert started.wait(DEADLINE)
        other.join(0.1)
        early = list(found)
        self._go.set()
        for thread in (self.thread, other):
            thread.join(DEADLINE)
            assert not thread.is_alive()
        assert not (waits and early), f"did not wait: {early}"
        return found


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_do_all_kinds_of_things_and_get_right_values(name: str, threads: int):
    command = [sys.executable, "-m", "tests.ml.stress", "0.02", "--backend", name]
    done = subprocess.run(
        [*command, "--threads", str(threads)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'product'" in done.stdout


def test_a_second_thread_waits_for_its_turn(one: Backend):
    slow = Slow(one)
    with one.new_context() as ctx:
        y, wanted = product(one, ctx, 5)
        assert slow.meanwhile(lambda: ctx.compute(y), waits=True) == [None]
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4, atol=1e-4)
    assert slow.outcome == [2, 4, 6, 8]


def test_recording_does_not_wait(one: Backend):
    slow = Slow(one)
    with one.new_context() as ctx:
        y, _ = product(one, ctx, 3)
        ctx.forward(y)
        assert slow.thread.is_alive()
    slow.meanwhile(lambda: None)
    assert slow.outcome == [2, 4, 6, 8]


def test_closing_waits_for_the_computation(name: str):
    backend = backend_of({"w": WEIGHT}, name=name)
    slow = Slow(backend)
    assert slow.meanwhile(backend.close, waits=name != "process") == [None]
    if name == "process":  # it has its process for itself, and ends that
        assert slow.outcome == [2, 4, 6, 8] or isinstance(slow.outcome, GraphError)
    else:
        assert slow.outcome == [2, 4, 6, 8]
    with pytest.raises(GraphError, match="closed"):
        backend.new_context()


def test_whoever_waits_when_it_is_closed_is_told(name: str):
    backend = backend_of({"w": WEIGHT}, name=name)
    slow = Slow(backend)
    ctx = backend.new_context()
    y, wanted = product(backend, ctx, 5)

    def close_while_others_wait() -> None:
        other = threading.Thread(target=backend.close, daemon=True)
        other.start()
        time.sleep(0.02)
        ctx.compute(y)  # either of them may be first

    (outcome,) = slow.meanwhile(close_while_others_wait)
    if outcome is None:
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4, atol=1e-4)
    else:
        assert isinstance(outcome, GraphError) and "closed" in str(outcome)


def test_freeing_a_context_waits_for_its_computation(one: Backend):
    slow = Slow(one)
    assert slow.meanwhile(slow._ctx.close, waits=True) == [None]
    assert slow.outcome == [2, 4, 6, 8]


def test_reading_and_reports_wait(one: Backend, name: str):
    with one.new_context() as ctx:
        state = ctx.layer(1).from_floats(np.arange(3))
        slow = Slow(one)
        assert slow.meanwhile(lambda: state.numpy().tolist(), waits=True) == [[0, 1, 2]]
        assert slow.outcome == [2, 4, 6, 8]
        slow = Slow(one)
        # The memory of a process is reported there, beside a feed here.
        waits = name != "process"
        assert slow.meanwhile(lambda: one.backend_memory().size() > 0, waits=waits) == [True]
    assert slow.outcome == [2, 4, 6, 8]


# from within a computation


def refused_in_a_feed(backend: Backend, *uses: Callable[[Context], object]) -> list[str]:
    """The errors of uses of the backend, or of this context with a state, in a feed of it."""
    errors: list[str] = []

    def fill(step: Any) -> np.ndarray:
        for use in uses:
            try:
                use(ctx)
            except GraphError as error:
                errors.append(str(error))
        return np.ones(4)

    with backend.new_context() as ctx:
        y = ctx.feed(fill, DType.F32, 4) + ctx.layer(0).from_floats(np.arange(4))
        ctx.compute(y)
        assert y.numpy().tolist() == [1, 2, 3, 4]
    return errors


def test_a_feed_closes_or_computes_on_its_own_backend(one: Backend):
    def compute(ctx: Context) -> None:
        with one.new_context() as inner:
            inner.compute(inner.input().from_floats([1.0]).scale(2.0))

    def load(ctx: Context) -> None:
        one.load()

    def close(ctx: Context) -> None:
        one.close()

    errors = refused_in_a_feed(one, close, compute, Context.close, Context.reserve, load)
    assert len(errors) == 5
    assert all("uses that very backend" in error for error in errors)
    with one.new_context() as ctx:
        y, wanted = product(one, ctx, 4)
        ctx.compute(y)
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_a_feed_may_read_states_and_make_tensors(one: Backend):
    with one.new_context() as other:
        state = other.layer(0).from_floats(np.arange(3))
        seen: list[Any] = []

        def use(ctx: Context) -> None:
            seen.append(state.numpy().tolist())
            seen.append(other.layer(1).from_floats(np.ones(2)).numpy().tolist())
            seen.append(one.backend_memory().size() > 0)

        assert refused_in_a_feed(one, use) == []
    assert seen == [[0, 1, 2], [1, 1], True]


def test_a_feed_may_compute_on_another_backend(one: Backend):
    with backend_of() as other:

        def use(ctx: Context) -> None:
            with other.new_context() as inner:
                y = inner.input().from_floats([3.0]).scale(2.0)
                inner.compute(y)
                assert y.numpy().tolist() == [6]

        assert refused_in_a_feed(one, use) == []


def test_one_that_is_notified_closes(one: Backend):
    with one.new_context() as ctx:
        y = ctx.input().from_floats([1.0]).scale(2.0)
        with pytest.raises(GraphError, match="uses that very backend"):
            ctx.compute_with_notify(one.close, y)
        ctx.compute(y)
        assert y.numpy().tolist() == [2]


@pytest.mark.parametrize("name", ["ggml", "process"], indirect=True)
def test_loading_reports_to_one_that_closes(name: str):
    with backend_of({"w": WEIGHT}, name=name) as backend:
        with pytest.raises(GraphError, match="uses that very backend"):
            backend.load(progress=lambda share: backend.close())
        assert not backend.closed


def test_after_a_failed_feed_others_compute(one: Backend):
    with one.new_context() as ctx:
        bad = ctx.feed(lambda step: 1 / 0, DType.F32, 4).scale(2.0)
        with pytest.raises(ComputeError, match="ZeroDivisionError"):
            ctx.compute(bad)
    slow = Slow(one)
    slow.meanwhile(lambda: None)
    assert slow.outcome == [2, 4, 6, 8]


# forks

FORKED = """
import os, signal, sys, threading, time
import numpy as np
from ggmodel.errors import GraphError
from ggmodel.ml import DType
from tests.ml.harness import backend_of
from tests.ml.test_turns import Slow

backend = backend_of(name=sys.argv[1])
slow = Slow(backend)
child = os.fork()
if child:
    status = os.waitpid(child, 0)[1]
    slow.meanwhile(lambda: None)
    assert slow.outcome == [2, 4, 6, 8], slow.outcome
    sys.exit(os.waitstatus_to_exitcode(status) and 3)
signal.alarm(20)
for use in (backend.new_context, backend.load, lambda: slow._ctx.compute(slow._y)):
    try:
        use()
        sys.exit(4)
    except GraphError as error:
        assert "forked" in str(error), error
slow._ctx.close()
backend.close()
os._exit(0)
"""


@pytest.mark.parametrize("name", ["ggml", "process"], indirect=True)
def test_a_forked_child_is_refused_at_once_while_another_thread_computes(name: str):
    command = [sys.executable, "-c", FORKED, name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_numpy_computes_in_a_forked_child_while_another_thread_computes():
    code = """
backend = backend_of(name=sys.argv[1])
slow = Slow(backend)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(20)
with backend.new_context() as ctx:
    y = ctx.input().from_floats([1.0]).scale(2.0)
    ctx.compute(y)
    os._exit(0 if y.numpy().tolist() == [2] else 5)
"""
    head = FORKED.partition("backend = ")[0]
    command = [sys.executable, "-c", head + code, "reference"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
