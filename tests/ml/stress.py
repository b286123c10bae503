"""Several threads do all kinds of things to one backend; every result is compared with numpy.

`python -m tests.ml.stress MINUTES [--backend ggml|reference|process] [--threads N] [--seed N]` ends
with status 0 if all results were right; otherwise the first wrong one is printed.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ComputeError, GraphError
from ggmodel.ml import Backend, Context, DType, Tensor
from ggmodel.ml.executable import Executable
from tests.ml.harness import backend_of, normal

WIDTH, ROWS = 64, 48
WEIGHT = normal(ROWS, WIDTH)
_LEAST = 30  # actions of each thread, however slow the machine is
_LIVES = 0.4  # seconds until a backend is closed under the threads that use it


class Stress:
    """The backend in use, which one thread after the other closes and replaces.

    Args:
        name: of the backend.
        seconds: of work, once it is open.

    Attributes:
        done: how often each thing was done, and each refusal met.
        wrong: descriptions of wrong results and of errors that are none of ours.
    """

    def __init__(self, name: str, seconds: float):
        self._name = name
        self._replacing = threading.Lock()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._open()
        self._end = time.monotonic() + seconds

    def _open(self) -> None:
        self.backend = backend_of({"w": WEIGHT}, name=self._name)
        ctx = self.backend.new_context()
        inputs = [ctx.input().from_floats(np.full(5, i)) for i in range(8)]
        self.shared = [(ctx, x.scale(3.0), 3.0 * i) for i, x in enumerate(inputs)]
        self._opened = time.monotonic()

    def replace(self) -> None:
        """Closes the backend while others compute, and makes the next one."""
        with self._replacing:
            if time.monotonic() - self._opened > _LIVES:
                old = self.backend
                self._open()
                old.close()

    def run(self, threads: int, seed: int) -> None:
        """Has so many threads work until the time is up."""
        running = [
            threading.Thread(target=self._work, args=(random.Random(100 * seed + i),), daemon=True)
            for i in range(threads)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        self.backend.close()

    def _work(self, rng: random.Random) -> None:
        kept, begun = Kept(), 0
        while (time.monotonic() < self._end or begun < _LEAST) and not self.wrong:
            begun += 1
            action = rng.choice(ACTIONS)
            backend = self.backend
            try:
                action(self, backend, rng, kept)
                self.done[action.__name__] += 1
            except GraphError as error:
                if "closed" in str(error) or "memory is gone" in str(error):
                    self.done["refused"] += 1
                else:
                    self.wrong.append(f"{action.__name__}: {error}")
            except BaseException as error:
                self.wrong.append(f"{action.__name__}: {type(error).__name__}: {error}")


class Kept:
    """A thread's own compiled graph.

    Attributes:
        backend: of the graph.
    """

    backend: Backend | None = None
    executable: Executable
    output: Tensor

    def compiled(self, backend: Backend) -> Executable:
        """The graph, compiled again if it is of no use any more."""
        if self.backend is not backend or not self.executable.valid:
            ctx = backend.new_context()
            with ctx.trace():
                self.output = _product(backend, ctx.feed(lambda x: x, DType.F32, WIDTH, 7))
                ctx.forward(self.output)
                self.executable = backend.compile(ctx.graph, (self.output,))
            self.backend = backend
        return self.executable


def _product(backend: Backend, x: Tensor) -> Tensor:
    w = backend.get("w")
    assert w is not None
    return w.mulmat(x).scale(2.0)


def _need(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


def _rows(rng: random.Random, most: int = 300) -> np.ndarray:
    n = rng.choice((1, 2, 7, most // 3, most))
    return np.full((n, WIDTH), 1.0, np.float32) * np.float32(rng.uniform(-2, 2))


def product(test: Stress, backend: Backend, rng: random.Random, kept: Kept) -> None:
    x = _rows(rng)
    ctx = backend.new_context()
    y = _product(backend, ctx.input().from_floats(x))
    ctx.compute(y)
    _need(y.numpy(), 2 * x @ WEIGHT.T if len(x) > 1 else (2 * x @ WEIGHT.T)[0])
    if rng.random() < 0.7:
        ctx.close()


def state(test: Stress, backend: Backend, rng: random.Random, kept: Kept) -> None:
    x = _rows(rng, 30)
    ctx = backend.new_context()
    try:
        memory = ctx.layer(rng.randrange(2)).zeros(DType.F32, *x.shape[::-1])
        ctx.compute(ctx.input().from_floats(x).copy(memory))
        _need(memory.raw().reshape(x.shape), x)
    finally:
        if rng.random() < 0.8:
            ctx.close()


def replay(test: Stress, backend: Backend, rng: random.Random, kept: Kept) -> None:
    executable, x = kept.compiled(backend), normal(7, WIDTH, seed=rng.randrange(99))
    with executable.turn.lock:
        executable.run(x)
        got = executable.value(kept.output).copy()
    _need(got.reshape(7, ROWS), 2 * x @ WEIGHT.T)


def one_context(test: Stress, backend: Backend, rng: random.Random, kept: Kept) -> None:
    ctx, y, wanted = rng.choice(test.shared)
    ctx.compute(y)
    _need(y.numpy(), np.full(5, wanted))


def failing_feed(test: Stress, backend: Backend, rng: random.Random, kept: Kept) -> None:
    ctx = backend.new_context()
    refused: list[GraphError] = []

    def fill(step: Any) -> np.ndarray:
        for use in (backend.close, lambda: Context.compute(ctx, y)):
            try:
                use()
            except GraphError as error:
                refused.append(error)
        raise ZeroDivisionError

    y = ctx.feed(fill, DType.F32, 4).scale(2.0)
    with pytest.raises(ComputeError, match="ZeroDivisionError"):
        ctx.compute(y)
    assert len(refused) == 2, refused


def look(test: Stress, backend: Backend, rng: random.Random, kept: Kept) -> None:
    assert backend.backend_memory().size() >= WEIGHT.nbytes
    backend.backend_devices()
    w = backend.get("w")
    assert w is not None
    _need(w.numpy(), WEIGHT)


def reserve(test: Stress, backend: Backend, rng: random.Random, kept: Kept) -> None:
    with backend.new_context() as ctx, ctx.trace():
        ctx.forward(_product(backend, ctx.feed(_rows, DType.F32, WIDTH, rng.randrange(1, 900))))
        ctx.reserve()


def collect(test: Stress, backend: Backend, rng: random.Random, kept: Kept) -> None:
    kept.backend = None
    gc.collect()


def replace(test: Stress, backend: Backend, rng: random.Random, kept: Kept) -> None:
    test.replace()


ACTIONS: list[Callable[[Stress, Backend, random.Random, Kept], None]] = [
    *[product] * 4,
    *[replay] * 4,
    *[state] * 2,
    *[one_context] * 2,
    failing_feed,
    look,
    reserve,
    collect,
    replace,
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--backend", default="ggml")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seconds = 60 * options.minutes
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds + 60, exit=True)
    test = Stress(options.backend, seconds)
    test.run(options.threads, options.seed)
    faulthandler.cancel_dump_traceback_later()
    print(dict(test.done))
    if test.wrong:
        raise SystemExit(f"WRONG: {test.wrong[0]}")


if __name__ == "__main__":
    main()
