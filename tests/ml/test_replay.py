"""A graph compiled once and run many times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ComputeError, GraphError, TensorError
from ggmodel.ml import Backend, Context, DType, Tensor
from ggmodel.ml.executable import Executable
from ggmodel.ml.node import Rows
from tests.ml.harness import backend_of, normal


@pytest.fixture
def small(anywhere: Callable[..., Backend]) -> Iterator[Backend]:
    with anywhere({"w": normal(16, 8), "table": normal(10, 8, seed=1)}) as backend:
        yield backend


def network(backend: Backend, ctx: Context) -> Tensor:
    w, table = backend.get("w"), backend.get("table")
    assert w is not None and table is not None
    ids = ctx.feed(lambda step: step["ids"], DType.I32, 3)
    bias = ctx.feed(lambda step: step["bias"], DType.F32, 16)
    y = w.mulmat(table.rows(ids)) + bias
    for _ in range(6):  # memory is taken again and again
        y = y.silu(y.rms_norm()) + bias
    return y


def steps(n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"ids": rng.integers(0, 10, 3), "bias": rng.standard_normal(16).astype(np.float32)}
        for _ in range(n)
    ]


def test_replaying_equals_rebuilding_bit_for_bit(small: Backend):
    with small.new_context() as ctx, ctx.trace():
        out = network(small, ctx)
        ctx.forward(out)
        assert ctx.graph.replayable
        once = small.compile(ctx.graph, (out,))
        replayed = []
        for step in steps(6):
            once.run(step)
            replayed.append(once.value(out).tobytes())
        once.close()
    rebuilt = []
    for step in steps(6):
        with small.new_context() as ctx, ctx.trace():
            out = network(small, ctx)
            ctx.forward(out)
            executable = small.compile(ctx.graph, (out,))
            executable.run(step)
            rebuilt.append(executable.value(out).tobytes())
            executable.close()
    assert replayed == rebuilt
    assert len(set(replayed)) == 6


def test_baked_in_data_cannot_be_replayed(small: Backend):
    with small.new_context() as ctx, ctx.trace():
        out = network(small, ctx)
        baked = out + ctx.input().from_floats(normal(16))
        ctx.forward(out)
        assert ctx.graph.replayable  # what is not scheduled does not count
        ctx.forward(baked)
        assert not ctx.graph.replayable


def test_constants_are_there_in_each_run(small: Backend):
    values = normal(3, 16)
    with small.new_context() as ctx, ctx.trace():
        fed = ctx.feed(lambda step: step, DType.F32, 16)
        known, at = ctx.constant(values, DType.F32), ctx.constant([2, 0])
        assert (known.ne, at.ne) == ((16, 3, 1, 1), (2, 1, 1, 1))
        out = known.rows(at) + fed
        ctx.forward(out)
        assert ctx.graph.replayable
        executable = small.compile(ctx.graph, (out,))
        for step in (np.zeros(16), np.ones(16)):
            executable.run(step)
            wanted = values[[2, 0]] + step.astype(np.float32)
            assert np.array_equal(executable.value(out)[0, 0], wanted)
        executable.close()


def test_a_constant_is_a_copy(small: Backend):
    values = np.ones(16, np.float32)
    with small.new_context() as ctx, ctx.trace():
        out = ctx.constant(values, DType.F32).scale(2)
        values += 1
        ctx.forward(out).compute(out)
        assert np.array_equal(out.numpy(), np.full(16, 2, np.float32))


@pytest.mark.parametrize("wrong", [[0.5], [1 << 31], ["a"]], ids=str)
def test_constants_that_fit_no_integer(small: Backend, wrong: Any):
    with small.new_context() as ctx, pytest.raises(TensorError, match="values for"):
        ctx.constant(wrong)


def test_feeds_keep_their_memory(small: Backend):
    with small.new_context() as ctx, ctx.trace():
        feed = ctx.feed(lambda step: step, DType.F32, 64)
        out = feed.scale(2)
        for _ in range(8):
            out = out.sqr().scale(0.5)
        ctx.forward(out)
        executable = small.compile(ctx.graph, (out,))
        step = normal(64)
        for _ in range(3):
            executable.run(step)
            assert executable.value(feed).tobytes() == step.tobytes()


def test_a_feed_broadcasts(small: Backend):
    with small.new_context() as ctx, ctx.trace():
        feed = ctx.feed(lambda step: step, DType.F32, 4, 3)
        out = feed.scale(1)
        ctx.forward(out)
        executable = small.compile(ctx.graph, (out,))
        for step in (5.0, normal(4), normal(3, 1), normal(3, 4)):
            executable.run(step)
            want = np.broadcast_to(np.float32(step), (3, 4))
            np.testing.assert_array_equal(executable.value(out)[0, 0], want)
        with pytest.raises(ComputeError, match="broadcast"):
            executable.run(normal(5))


def test_indices_of_feeds_are_checked_in_every_step(small: Backend):
    with small.new_context() as ctx, ctx.trace():
        out = network(small, ctx)
        ctx.forward(out)
        executable = small.compile(ctx.graph, (out,))
        good, bad = steps(2)
        executable.run(good)
        want = executable.value(out).tobytes()
        for ids in ([0, 10, 1], [-1, 0, 0]):
            with pytest.raises(ComputeError, match="selects rows"):
                executable.run({**bad, "ids": np.array(ids)})
        executable.run(good)
        assert executable.value(out).tobytes() == want


@pytest.mark.parametrize("wrong", [2**40 + 3, 1.5, float("nan")])
def test_numbers_that_are_no_indices_are_not_made_into_some(small: Backend, wrong: float):
    with small.new_context() as ctx, ctx.trace():
        out = network(small, ctx)
        ctx.forward(out)
        executable = small.compile(ctx.graph, (out,))
        (good,) = steps(1)
        with pytest.raises(ComputeError, match="is no int32"):
            executable.run({**good, "ids": np.array([0, wrong, 1])})
        executable.run(good)


def test_graphs_take_turns_in_the_same_memory(small: Backend):
    with small.new_context() as one, small.new_context() as two:
        with one.trace():
            a = network(small, one)
        with two.trace():
            b = network(small, two).neg()
        one.forward(a)
        two.forward(b)
        first, second = small.compile(one.graph, (a,)), small.compile(two.graph, (b,))
        assert first.valid and second.valid
        for step in steps(3):
            first.run(step)
            value = first.value(a).copy()
            second.run(step)
            np.testing.assert_array_equal(second.value(b), -value)


def test_graphs_share_the_memory_of_their_inputs():
    with backend_of() as backend, backend.new_context() as ctx, ctx.trace():

        def fed(n: int) -> tuple[Executable, Tensor]:
            with backend.new_context() as own, own.trace():
                out = own.feed(lambda step: step, DType.F32, n).scale(2)
                return backend.compile(own.forward(out).graph, (out,)), out

        large, first = fed(1 << 16)
        before = backend.backend_memory().cpu.graph
        others = [fed(n) for n in (1, 1 << 10, 1 << 16)]
        assert backend.backend_memory().cpu.graph == before
        for executable, out in [*others, (large, first), *others]:
            step = normal(out.n_elements)
            executable.run(step)
            np.testing.assert_array_equal(executable.value(out).reshape(-1), 2 * step)
        assert large.valid
        fed(1 << 17)  # moves the memory
        assert not large.valid
        with pytest.raises(GraphError, match="compile it again"):
            large.run(normal(1 << 16))


def test_rows_are_made_as_they_are_written(small: Backend):
    made: list[slice] = []

    def rows(step: np.ndarray) -> Rows:
        def make(at: slice) -> np.ndarray:
            made.append(at)
            return step[at]

        return Rows(step.shape, np.float32, make)

    with small.new_context() as ctx, ctx.trace():
        out = ctx.feed(rows, DType.F32, 1 << 10, 300).scale(1)
        ctx.forward(out)
        executable = small.compile(ctx.graph, (out,))
        step = normal(300, 1 << 10)
        executable.run(step)
        np.testing.assert_array_equal(executable.value(out)[0, 0], step)
        assert [at.start for at in made] == [0, 128, 256]
        for shape in ((300, 1 << 9), (1 << 10, 300), (300,)):
            with pytest.raises(ComputeError, match="could not be filled"):
                executable.run(normal(*shape))


def test_a_graph_that_keeps_only_its_outputs_runs_on(small: Backend):
    with small.new_context() as ctx, ctx.trace():
        out = network(small, ctx)
        ctx.forward(out)
        whole = small.compile(ctx.graph, (out,))
        part = small.compile(ctx.graph, (out,))
        values = []
        for step in steps(3):
            whole.run(step)
            values.append(whole.value(out).tobytes())
        whole.close()
        part.keep_only((out,))
        for step, value in zip(steps(3), values, strict=True):
            part.run(step)
            assert part.value(out).tobytes() == value
            with pytest.raises(ComputeError, match="selects rows"):
                part.run({**step, "ids": np.array([0, 10, 1])})


def test_a_grown_buffer_ends_the_graphs_laid_out_before(small: Backend):
    with small.new_context() as ctx, ctx.trace():
        out = network(small, ctx)
        ctx.forward(out)
        executable = small.compile(ctx.graph, (out,))
        step = steps(1)[0]
        executable.run(step)
        want = executable.value(out).tobytes()
        with small.new_context() as big:
            y = big.input().from_floats(normal(1)).repeat_4d(1 << 16, 1, 1, 1)
            big.forward(y).compute(y)
        assert not executable.valid
        for use in (lambda: executable.run(step), lambda: executable.value(out)):
            with pytest.raises(GraphError, match="compile it again"):
                use()
        again = small.compile(ctx.graph, (out,))
        again.run(step)
        assert again.value(out).tobytes() == want


def test_a_closed_executable_says_so(small: Backend):
    with small.new_context() as ctx, ctx.trace():
        out = network(small, ctx)
        ctx.forward(out)
        executable = small.compile(ctx.graph, (out,))
        executable.close()
        executable.close()
        assert not executable.valid
        with pytest.raises(GraphError):
            executable.run(steps(1)[0])
        with pytest.raises(GraphError):
            executable.value(out)


@pytest.mark.parametrize("given", [None, [None] * 4, "four", np.array([None] * 4), np.zeros(3)])
def test_what_a_feed_cannot_take_is_an_error_and_no_nan(given: Any):
    with backend_of() as backend, backend.new_context() as ctx, ctx.trace():
        y = ctx.feed(lambda step: given, DType.F32, 4).scale(2)
        ctx.forward(y)
        executable = backend.compile(ctx.graph, (y,))
        with pytest.raises(ComputeError, match=r"could not be filled(.|\n)*test_replay\.py"):
            executable.run()
        executable.close()
