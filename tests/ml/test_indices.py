"""Indices that are computed, written or kept in states, and other once fatal operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ggmodel.errors import ComputeError, GraphError, TensorError
from ggmodel.ml import Backend, Context, DType, RopeType, Tensor
from tests.ml.harness import blocks, normal, tensor

TABLE = normal(6, 4)
I32 = DType.I32


@pytest.fixture(scope="module")
def backend(anywhere: Callable[..., Backend]) -> Iterator[Backend]:
    with anywhere() as backend:
        yield backend


@pytest.fixture
def table(ctx: Context) -> Tensor:
    return ctx.input().from_floats(TABLE)


IN_RANGE: dict[str, tuple[Callable[[Context], Tensor], list[int]]] = {
    "sorted": (lambda c: c.input().from_floats([3.0, 1, 2, 9, 8, 7]).argsort(), [1, 2, 0, 5, 4, 3]),
    "chosen": (lambda c: c.input().from_floats([3.0, 1, 2, 9]).top_k(2), [3, 0]),
    "largest": (lambda c: c.input().from_floats([3.0, 1, 2, 9]).argmax(), [3]),
    "counted": (lambda c: c.arange(2, 6, dtype=I32), [2, 3, 4, 5]),
    "backwards": (lambda c: c.arange(5, 0, -2, dtype=I32), [5, 3, 1]),
    "fractions": (lambda c: c.arange(0, 5, 1.25).cast(I32), [0, 1, 2, 3]),
    "clamped": (
        lambda c: c.input().from_floats([-1e9, 2.5, np.nan, 1e9]).clamp(0, 5).cast(I32),
        [0, 2, 5, 5],
    ),
    "summed": (
        lambda c: (c.arange(0, 3).fill(-1).cumsum() + c.arange(0, 3).fill(6)).cast(I32),
        [5, 4, 3],
    ),
    "moved": (
        lambda c: c.arange(0, 6).reshape(2, 3).permute(1, 0).contiguous(6).cast(I32).duplicate(),
        [0, 2, 4, 1, 3, 5],
    ),
    "part of what is given": (lambda c: c.input().from_ints([9, 5, 2, -1]).slice(0, 1, 3), [5, 2]),
    "of a state": (lambda c: c.layer(0).from_ints([5, 0]), [5, 0]),
    "halves": (
        lambda c: c.input().from_bytes(DType.F16, HALVES.tobytes(), 2).cast(DType.F32).cast(I32),
        [5, 1],
    ),
}
HALVES = np.array([5.5, 1], np.float16)


@pytest.mark.parametrize("how", IN_RANGE)
def test_indices_that_are_in_range_whatever_happens(ctx: Context, table: Tensor, how: str):
    make, want = IN_RANGE[how]
    y = table.rows(make(ctx))
    ctx.compute(y)
    np.testing.assert_array_equal(y.numpy().reshape(-1, 4), TABLE[want])


def written(ctx: Context, value: Tensor) -> Tensor:
    """An input that another op writes before it is read."""
    ids = ctx.input().from_ints([0, 0])
    ctx.forward(value.copy(ids))
    return ids


def half_way(ctx: Context) -> Tensor:
    """Halves are rounded: a number below 6 may become 6."""
    return ctx.input().from_floats([5.9999, 1]).cast(DType.F16).cast(DType.F32).cast(I32)


OPEN: dict[str, Callable[[Context], Tensor]] = {
    "computed": lambda c: c.input().from_floats([1.0, 2]).scale(1).cast(I32),
    "clamped too high": lambda c: c.input().from_floats([1.0, 2]).clamp(0, 6).cast(I32),
    "clamped to what rounds up": lambda c: c.arange(0, 2).clamp(0, 5.99999999).cast(I32),
    "clamped too low": lambda c: c.input().from_floats([1.0, 2]).clamp(-1, 5).cast(I32),
    "counted too far": lambda c: c.arange(0, 7, dtype=I32),
    "sorted too much": lambda c: c.input().from_floats(np.zeros(7)).argsort(),
    "rounded": half_way,
    "blocks": lambda c: tensor(c, blocks(DType.Q8_0, normal(32))).cast(DType.F32).cast(I32),
    "written": lambda c: written(c, c.input().from_floats([1.0, 2]).scale(1).cast(I32)),
}


@pytest.mark.parametrize("how", OPEN)
def test_indices_that_may_be_out_of_range_are_refused(ctx: Context, table: Tensor, how: str):
    y = table.rows(OPEN[how](ctx))
    with pytest.raises(TensorError, match=r"(?s)rows: the indices come from .* clamp\(0, 5\)"):
        ctx.compute(y)


def test_written_indices_are_checked_where_they_come_from(ctx: Context, table: Tensor):
    other = ctx.input().from_ints([4, 6])
    y = table.rows(written(ctx, other))
    with pytest.raises(ComputeError, match="selects rows 4 to 6 of 6"):
        ctx.compute(y)
    other.from_ints([4, 5])
    ctx.compute(y)
    np.testing.assert_array_equal(y.numpy(), TABLE[[4, 5]])


def test_indices_in_a_state_are_looked_at_in_every_run(backend: Backend):
    with backend.new_context() as ctx, ctx.trace():
        ids = ctx.layer(0).from_ints([1, 5])
        y = ctx.input().from_floats(TABLE).rows(ids)
        ctx.forward(y)
        executable = backend.compile(ctx.graph, (y,))
        executable.run()
        with backend.new_context() as writer, writer.trace():
            new = writer.input().from_ints([1, 6]).copy(ids)
            writer.forward(new).compute(new)
        executable = backend.compile(ctx.graph, (y,))
        with pytest.raises(ComputeError, match="selects rows 1 to 6 of 6"):
            executable.run()


def test_a_graph_ends_with_the_states_it_works_on(backend: Backend):
    with backend.new_context() as ctx, ctx.trace():
        with backend.new_context() as cache:
            state = cache.layer(0).zeros(DType.F32, 4)
            y = ctx.input().from_floats([1.0, 2, 3, 4]).copy(state)
            ctx.forward(y)
            executable = backend.compile(ctx.graph, (y,))
            executable.run()
        assert not executable.valid
        with pytest.raises(GraphError):
            executable.run()


NEVER: dict[str, Callable[[Tensor], object]] = {
    "eps": lambda x: x.rms_norm(eps=-1),
    "eps that is none": lambda x: x.layer_norm(eps=float("nan")),
    "eps of a length": lambda x: x.l2_norm(eps=-1e-9),
    "bounds": lambda x: x.clamp(1, 0),
    "no sections": lambda x: x.rope(
        x.argsort(), 2, 1e4, type=RopeType.MROPE, sections=(0, 0, 0, 0)
    ),
    "more sections than elements": lambda x: x.rope(
        x.argsort(), 2, 1e4, type=RopeType.MROPE, sections=(9, 9, 2, 0)
    ),
    "a negative dim": lambda x: x.repeat_4d(4, 6, 1, -1),
    "a pool of all numbers": lambda x: x.avg_pool_2d(1 << 30, 1 << 29, (1 << 29)),
    "padding without end": lambda x: x.avg_pool_2d(2, 1, float("inf")),
    "a dim there is not": lambda x: x.concat(x, 4),
    "larger than any memory": lambda x: x.pad(1 << 50),
    "a stride of more than 32 bits": lambda x: x.set(x, 0, 1 << 31),
}


@pytest.mark.parametrize("what", NEVER)
def test_what_ggml_would_abort_on_is_refused_while_recording(table: Tensor, what: str):
    with pytest.raises(TensorError):
        NEVER[what](table)
