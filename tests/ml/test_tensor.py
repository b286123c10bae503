"""Shapes, strides, views and the errors of a tensor's methods."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.errors import TensorError
from ggmodel.ml import Backend, Context, DType
from tests.ml.harness import backend_of, blocks, normal, run


def zeros(ctx: Context, *shape: int, dtype: DType = DType.F32):
    return ctx.input().zeros(dtype, *shape)


def test_shape_drops_trailing_ones_and_dim_does_not(ctx: Context):
    x = zeros(ctx, 5, 1, 3, 1)
    assert x.shape == (5, 1, 3)
    assert [x.dim(i) for i in range(4)] == [5, 1, 3, 1]
    assert zeros(ctx, 1, 1, 1, 1).shape == (1,)


@pytest.mark.parametrize(
    ("dtype", "strides"),
    [
        (DType.F32, (4, 128, 384, 1920)),
        (DType.F16, (2, 64, 192, 960)),
        (DType.Q8_0, (34, 34, 102, 510)),
        (DType.I64, (8, 256, 768, 3840)),
    ],
    ids=str,
)
def test_strides_are_bytes(ctx: Context, dtype: DType, strides: tuple[int, ...]):
    x = zeros(ctx, 32, 3, 5, 2, dtype=dtype)
    assert tuple(x.stride(i) for i in range(4)) == strides


@pytest.mark.parametrize("n", [-1, 4, 1.0, None])
def test_there_are_four_dims(ctx: Context, n: object):
    x = zeros(ctx, 2)
    with pytest.raises(TensorError, match="dims 0 to 3"):
        x.dim(n)  # type: ignore[arg-type]
    with pytest.raises(TensorError, match="dims 0 to 3"):
        x.stride(n)  # type: ignore[arg-type]


def test_permute_says_where_each_axis_goes(ctx: Context):
    x = zeros(ctx, 2, 3, 5)
    assert x.permute(2, 0, 1, 3).shape == (3, 5, 2)
    assert x.permute(1, 0).shape == (3, 2, 5)


@pytest.mark.parametrize("order", [(0, 0, 1, 2), (0, 1, 2, 4), (1, 2, 3), (0, 1, 2, 3, 4), (-1, 0)])
def test_permute_takes_permutations_only(ctx: Context, order: tuple[int, ...]):
    with pytest.raises(TensorError, match="no permutation"):
        zeros(ctx, 2, 3).permute(*order)


def test_dim_0_of_blocks_stays_in_place(ctx: Context):
    x = zeros(ctx, 32, 3, dtype=DType.Q8_0)
    with pytest.raises(TensorError, match="stays in place"):
        x.permute(1, 0, 2, 3)
    assert x.permute(0, 2, 1, 3).shape == (32, 1, 3)


def test_one_dim_is_inferred(ctx: Context):
    x = zeros(ctx, 4, 6)
    assert x.reshape(-1).shape == (24,)
    assert x.reshape(3, -1, 2).shape == (3, 4, 2)
    assert x.reshape(24, -1).shape == (24,)
    assert x.contiguous(2, -1).shape == (2, 12)
    assert x.permute(1, 0, 2, 3).contiguous(-1, 2).shape == (12, 2)


@pytest.mark.parametrize(
    "shape",
    [(), (-1, -1), (0, 24), (-1, 0), (5, -1), (4, 5), (-2, 12), (2, 2, 2, 3, 1), (4.0, 6), (25,)],
)
def test_impossible_shapes_are_errors(ctx: Context, shape: tuple[int, ...]):
    x = zeros(ctx, 4, 6)
    with pytest.raises(TensorError):
        x.reshape(*shape)
    if shape:
        with pytest.raises(TensorError):
            x.contiguous(*shape)


def test_reshape_keeps_whole_blocks(ctx: Context):
    x = zeros(ctx, 64, 2, dtype=DType.Q8_0)
    assert x.reshape(32, 4).shape == (32, 4)
    with pytest.raises(TensorError):
        x.reshape(16, 8)


def test_the_norm_of_a_part_reads_it_where_it_lies(ctx: Context):
    """Queries and keys of one product are parts of it; a copy would cost as much as the norm."""
    x = ctx.input().from_floats(np.ones((5, 4, 8), np.float32))
    for part, copied in ((x.slice(1, 1, 3), False), (x.permute(1, 0), True)):
        (source, *_) = part.rms_norm().sources
        assert source is not None and source.op is not None
        assert (source.op.name == "contiguous") == copied


def test_reshape_is_a_view_only_of_contiguous_memory(ctx: Context):
    x = zeros(ctx, 4, 6)
    assert x.reshape(24).base is x
    assert x.permute(1, 0, 2, 3).reshape(24).base is not x


@pytest.mark.parametrize("numbers", [(), (2, 4), (2, 4, 2, 4), (1,) * 9])
def test_view_takes_1_3_5_or_7_numbers(ctx: Context, numbers: tuple[int, ...]):
    with pytest.raises(TensorError, match="1, 3, 5 or 7"):
        zeros(ctx, 8, 8).view(0, *numbers)


@pytest.mark.parametrize(
    ("offset", "numbers"),
    [
        (0, (25,)),
        (4, (24,)),
        (-4, (2,)),
        (2, (2,)),  # not at an element
        (0, (4, 16, 7)),
        (16, (4, 16, 6)),
        (0, (4, -16, 2)),
        (0, (-4,)),
        (0, (2, 10, 2)),  # not a whole stride
        (0, (4, 16, 6, 96, 2)),
        (0, (4, 1 << 62, 4)),
    ],
)
def test_a_view_stays_in_its_memory(ctx: Context, offset: int, numbers: tuple[int, ...]):
    with pytest.raises(TensorError):
        zeros(ctx, 4, 6).view(offset, *numbers)


def test_the_bounds_of_a_view_are_those_of_the_whole_tensor(ctx: Context):
    x = zeros(ctx, 4, 6)
    part = x.slice(1, 2, 4)
    assert part.view(0, 4, 16, 4).shape == (4, 4)  # rows 2 to 6 of x
    with pytest.raises(TensorError):
        part.view(0, 4, 16, 5)


@pytest.mark.parametrize(
    ("dim", "lo", "hi", "step"),
    [(0, 0, 5, 1), (0, -1, 2, 1), (1, 3, 3, 1), (1, 4, 2, 1), (0, 0, 2, 0), (0, 0, 2, -1),
     (4, 0, 1, 1), (-1, 0, 1, 1), (2, 0, 2, 1)],
)  # fmt: skip
def test_bad_ranges_are_errors(ctx: Context, dim: int, lo: int, hi: int, step: int):
    with pytest.raises(TensorError):
        zeros(ctx, 4, 6).slice(dim, lo, hi, step)


def test_a_slice_does_not_cut_blocks(ctx: Context):
    x = zeros(ctx, 64, 3, dtype=DType.Q8_0)
    assert x.slice(0, 32, 64).shape == (32, 3)
    for lo, hi in ((16, 48), (0, 16)):
        with pytest.raises(TensorError, match="block"):
            x.slice(0, lo, hi)


@pytest.fixture(scope="module")
def sliced():
    with backend_of() as backend:
        yield backend


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(st.data())
def test_a_slice_is_numpys(sliced: Backend, data: st.DataObject):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    dim = data.draw(st.integers(0, 2))  # ggml has no fourth dim to step over in dim 0
    full = (*shape, 1, 1, 1, 1)[:4]
    moved = [0, 0, 0, 0]
    for source, target in enumerate((*order, *range(len(shape), 4))):
        moved[target] = full[source]
    hi = data.draw(st.integers(1, moved[dim]))
    lo = data.draw(st.integers(0, hi - 1))
    step = data.draw(st.integers(1, 4))
    if dim == 0 and step > 1 and moved[3] > 1:
        step = 1
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape[::-1])
    got, out = run(sliced, lambda t: t.permute(*order).slice(dim, lo, hi, step), array)
    assert out.dim(dim) == math.ceil((hi - lo) / step)
    axes = np.argsort((*order, *range(len(shape), 4)))  # numpy's order is the inverse
    want = array.reshape(full[::-1]).transpose(tuple(3 - axes[::-1]))
    index = [slice(None)] * 4
    index[3 - dim] = slice(lo, hi, step)
    np.testing.assert_array_equal(got.reshape(-1), want[tuple(index)].reshape(-1))


def test_chunks_cover_all_and_the_last_may_be_short(ctx: Context):
    x = ctx.input().from_floats(np.arange(14.0).reshape(7, 2))
    parts = [p.contiguous() for p in x.chunk(1, 3)]
    ctx.forward(*parts).compute(*parts)
    assert [p.shape for p in parts] == [(2, 3), (2, 3), (2,)]
    np.testing.assert_array_equal(np.concatenate([p.floats() for p in parts]), np.arange(14))
    with pytest.raises(TensorError):
        x.chunk(1, 0)


def test_sections_sum_exactly(ctx: Context):
    x = zeros(ctx, 10, 2)
    assert [p.dim(0) for p in x.chunk_sections(0, 2, 3, 5)] == [2, 3, 5]
    for wrong in ((2, 3), (5, 6), (10, 0), (12, -2), ()):
        with pytest.raises(TensorError, match="sum"):
            x.chunk_sections(0, *wrong)


def test_views_share_memory_and_copies_do_not(ctx: Context):
    x = zeros(ctx, 4, 6)
    for view in (x.slice(1, 1, 3), x.permute(1, 0, 2, 3), x.reshape(24), x.view(0, 4)):
        assert view.base is x
    for copy in (x.duplicate(), x.permute(1, 0, 2, 3).contiguous(), x.slice(0, 0, 4, 2)):
        assert copy.base is not x


@pytest.mark.parametrize("k", [0, 5, -1])
def test_top_k_takes_what_is_there(ctx: Context, k: int):
    with pytest.raises(TensorError, match="top_k"):
        zeros(ctx, 4).top_k(k)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.pad(-1),
        lambda x: x.repeat(0, 0),
        lambda x: x.repeat(4, 2),
        lambda x: x.repeat_4d(6, 6, 1, 1),
        lambda x: x.concat(x, 4),
        lambda x: x.concat(x.reshape(6, 4), 0),
        lambda x: x.tri(0),
        lambda x: x.diag(),
        lambda x: x.set(x, 4),
        lambda x: x.set(x, -4),
        lambda x: x.cast(DType.Q8_0),
        lambda x: x.avg_pool_2d(9, 1),
        lambda x: x.interpolate((8, 8, 2, 1)),
        lambda x: x.mulmat("x"),
        lambda x: x + 1,
    ],
)
def test_wrong_arguments_are_errors(ctx: Context, wrong):
    with pytest.raises(TensorError):
        wrong(zeros(ctx, 4, 6))


def test_nothing_is_set_behind_the_end(ctx: Context):
    """ggml compares where the rows would lie, even if there are none."""
    with pytest.raises(TensorError, match="up to byte 112 of 96"):
        zeros(ctx, 4, 6).set(zeros(ctx, 3, 2, 1, 0), 84, 16, 120, 120)


def test_set_rows_is_a_view_of_its_destination(backend: Backend):
    with backend.new_context() as ctx, ctx.trace():
        state = ctx.layer(0).zeros(DType.F32, 4, 6)
        rows = ctx.input().from_floats(normal(2, 4))
        written = state.set_rows(rows, ctx.input().from_ints([5, 1]))
        assert written.base is state and written.shape == state.shape
        ctx.forward(written).compute(written)
        want = np.zeros((6, 4), np.float32)
        want[[5, 1]] = rows.numpy()
        np.testing.assert_array_equal(written.numpy(), want)
        np.testing.assert_array_equal(state.numpy(), want)


def test_copy_converts_and_is_a_view_of_its_destination(backend: Backend):
    with backend.new_context() as ctx, ctx.trace():
        state = ctx.layer(0).zeros(DType.Q8_0, 32, 2)
        values = normal(2, 32)
        copied = ctx.input().from_floats(values).copy(state)
        assert copied.base is state and copied.dtype is DType.Q8_0
        ctx.forward(copied).compute()
        assert state.bytes() == blocks(DType.Q8_0, values).data
        np.testing.assert_array_equal(state.numpy(), blocks(DType.Q8_0, values).values)


@pytest.mark.parametrize(
    "write",
    [
        lambda w, x, ids: w.set_rows(x, ids),
        lambda w, x, ids: x.copy(w),
        lambda w, x, ids: w.set_inplace(x, 16, 96, 96, 0),
        lambda w, x, ids: x.slice(1, 0, 1).copy(w.slice(1, 2, 3)),
    ],
    ids=["set_rows", "copy", "set_inplace", "through a view"],
)
def test_weights_cannot_be_written(write):
    with backend_of({"w": normal(6, 4)}) as backend, backend.new_context() as ctx, ctx.trace():
        x = ctx.input().from_floats(normal(6, 4, seed=1))
        ids = ctx.input().from_ints(range(6))
        with pytest.raises(TensorError, match="cannot be written"):
            write(backend.get("w"), x, ids)


def test_ops_leave_weights_alone():
    values = normal(6, 4)
    with backend_of({"w": values}) as backend, backend.new_context() as ctx, ctx.trace():
        w = backend.get("w")
        assert w is not None
        results = [
            w.clamp(-0.1, 0.1),
            w.tanh(),
            w.sigmoid(),
            w + w,
            w.scale(2),
            w.silu(),
            w.fill(0),
        ]
        copy = w.duplicate()
        ctx.forward(*results).compute(copy, *results)
        np.testing.assert_array_equal(copy.numpy(), values)  # computed after all others


def test_numpy_is_the_reversed_shape_and_floats_are_flat(ctx: Context):
    x = ctx.input().from_floats(normal(2, 3, 4))
    assert x.shape == (4, 3, 2)
    assert x.numpy().shape == (2, 3, 4)
    np.testing.assert_array_equal(x.floats(), x.numpy().reshape(-1))
    assert x.bytes() == x.numpy().tobytes()


@pytest.mark.parametrize("dtype", [DType.BF16, DType.Q4_0, DType.F16], ids=str)
def test_any_dtype_reads_as_floats(ctx: Context, dtype: DType):
    given = blocks(dtype, normal(2, 32))
    x = ctx.input().from_bytes(dtype, given.data, 32, 2)
    y = x.duplicate()
    ctx.forward(y).compute(y)
    for t in (x, y):
        assert t.bytes() == given.data
        np.testing.assert_array_equal(t.numpy(), given.values.astype(np.float32))
        assert t.floats().shape == (64,)


def test_a_returned_view_is_read_by_its_strides(ctx: Context):
    array = normal(4, 6)
    x = ctx.input().from_floats(array).scale(1)
    views = [x.permute(1, 0, 2, 3), x.slice(0, 1, 5), x.slice(1, 1, 4, 2)]
    ctx.forward(*views).compute(*views)
    np.testing.assert_array_equal(views[0].numpy(), array.T)
    np.testing.assert_array_equal(views[1].numpy(), array[:, 1:5])
    np.testing.assert_array_equal(views[2].numpy(), array[1:4:2])


@pytest.mark.parametrize(
    "op",
    [
        lambda c, x, empty: empty.mulmat(x),
        lambda c, x, empty: x.add(empty),
        lambda c, x, empty: x.mulmat_id(zeros(c, 4, 0, 2), zeros(c, 2, 2, dtype=DType.I32)),
        lambda c, x, empty: x.set_rows(zeros(c, 4, 2, 2), zeros(c, 2, 0, dtype=DType.I32)),
    ],
    ids=["mulmat", "add", "mulmat_id", "set_rows"],
)
def test_operands_without_elements_never_crash(ctx: Context, op):
    x, empty = zeros(ctx, 4, 3, 2), zeros(ctx, 4, 3, 0)
    with pytest.raises(TensorError):
        op(ctx, x, empty)


def test_a_tensor_is_neither_true_nor_false(ctx: Context):
    x = ctx.input().from_floats([0.0])
    for tensor in (x, x.scale(2)):
        with pytest.raises(TensorError, match=r"neither true nor false .* x is not None"):
            bool(tensor)
