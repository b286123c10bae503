"""Contexts: tensors, order of computing, limits and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ComputeError, GraphError, OutOfMemory, TensorError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendParams, Context, DType, new_backend
from ggmodel.ml.devices import AllocationStatus
from ggmodel.ml.ggml import memory as module
from tests.ml.harness import METADATA, backend_of, normal


@pytest.fixture(scope="module")
def backend(anywhere: Callable[..., Backend]) -> Iterator[Backend]:
    with anywhere() as backend:
        yield backend


# making tensors


@pytest.mark.parametrize(
    "make",
    [
        lambda c: c.empty(DType.F32, 2),
        lambda c: c.zeros(DType.F32, 2),
        lambda c: c.from_bytes(DType.F32, bytes(8), 2),
        lambda c: c.from_floats([1, 2]),
        lambda c: c.from_ints([1, 2]),
    ],
)
def test_a_place_must_be_said(ctx: Context, make):
    with pytest.raises(GraphError, match=r"ctx\.input\(\) or ctx\.layer"):
        make(ctx)
    assert make(ctx.input()).shape == (2,)
    assert make(ctx.layer(1)).shape == (2,)


def test_layers_count_from_0(ctx: Context):
    with pytest.raises(TensorError, match="count from 0"):
        ctx.layer(-1)


@pytest.mark.parametrize("place", ["input", "layer"])
def test_counts_must_fit(ctx: Context, place: str):
    where = ctx.input() if place == "input" else ctx.layer(0)
    for make in (
        lambda: where.from_floats([1, 2, 3], 2),
        lambda: where.from_floats([], 2),
        lambda: where.from_ints([1, 2, 3], 2, 2),
        lambda: where.from_bytes(DType.F16, bytes(3), 2),
        lambda: where.from_bytes(DType.Q8_0, bytes(33), 32),
    ):
        with pytest.raises(TensorError, match="bytes, not"):
            make()


def test_shapes_default_to_the_arrays(ctx: Context):
    assert ctx.input().from_floats(normal(2, 3, 4)).shape == (4, 3, 2)
    assert ctx.input().from_floats([[1, 2, 3], [4, 5, 6]]).shape == (3, 2)
    assert ctx.input().from_floats(5.0).shape == (1,)
    assert ctx.input().from_floats(normal(2, 3), 6).shape == (6,)
    strided = normal(4, 6)[::2, ::3]
    np.testing.assert_array_equal(ctx.input().from_floats(strided).numpy(), strided)


@pytest.mark.parametrize("shape", [(), (2, 2, 2, 2, 2), (-1,), (2, -3), (2.0,), ("2",)])
def test_shapes_have_one_to_four_dims(ctx: Context, shape: tuple):
    for place in (ctx.input(), ctx.layer(0)):
        with pytest.raises(TensorError, match="one to four dims"):
            place.zeros(DType.F32, *shape)


def test_rows_are_whole_blocks(ctx: Context):
    with pytest.raises(TensorError, match="32 must divide"):
        ctx.input().zeros(DType.Q8_0, 48)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 3, 0, 4)])
@pytest.mark.parametrize("place", ["input", "layer"])
def test_a_tensor_may_have_no_elements(ctx: Context, place: str, shape: tuple[int, ...]):
    where = ctx.input() if place == "input" else ctx.layer(0)
    for x in (
        where.zeros(DType.F32, *shape),
        where.from_floats(np.empty(shape[::-1]), *shape),
        where.from_bytes(DType.F32, b"", *shape),
    ):
        assert x.numpy().size == 0 and x.bytes() == b""
        y = x.scale(2)
        ctx.forward(y).compute(y)
        assert y.shape == x.shape and y.floats().size == 0


def test_empty_and_zeros_are_zero(ctx: Context):
    for place in (ctx.input(), ctx.layer(0)):
        for x in (place.empty(DType.F32, 3, 2), place.zeros(DType.F32, 3, 2)):
            np.testing.assert_array_equal(x.numpy(), np.zeros((2, 3)))


def test_inputs_may_be_set_until_they_are_computed(ctx: Context):
    x = ctx.input().empty(DType.F32, 3)
    i = ctx.input().empty(DType.I32, 2)
    y, r = x.scale(2), x.reshape(1, 3).rows(i)
    ctx.forward(y, r)
    x.from_floats([1, 2, 3])
    i.from_ints([2, 0])
    ctx.compute(y, r)
    assert y.floats().tolist() == [2, 4, 6]
    assert r.floats().tolist() == [3, 1]
    x.from_bytes(np.array([4, 5, 6], np.float32).tobytes())
    ctx.compute(y, r)
    assert y.floats().tolist() == [8, 10, 12]
    assert r.floats().tolist() == [6, 4]


def test_a_returned_input_shows_what_is_set_later(ctx: Context):
    x = ctx.input().from_floats([1.0])
    ctx.compute(x)
    x.from_floats([2.0])
    assert x.floats().tolist() == [2]


@pytest.mark.parametrize("name", ["ggml", "reference", "in a process"])
def test_tensors_of_layers_are_set(request: pytest.FixtureRequest, name: str):
    if name == "in a process":
        backend = request.getfixturevalue("in_process")(request.getfixturevalue("shared"))
    else:
        backend = backend_of(name=name)
    with backend, backend.new_context() as ctx, ctx.trace():
        where = ctx.layer(1)
        x, i, none = where.zeros(DType.F32, 3), where.from_ints([0, 0]), where.zeros(DType.F32, 0)
        blocks = where.zeros(DType.Q8_0, 32)
        y, r = x.scale(2), x.reshape(1, 3).rows(i)
        for values in ([1, 2, 3], np.array([4.0, 5, 6])):
            x.from_floats(values)
            i.from_ints([2, 0])
            ctx.compute(y, r)
            assert x.floats().tolist() == [*values]
            assert y.floats().tolist() == [2 * v for v in values]
            assert r.floats().tolist() == [values[2], values[0]]
        x.from_bytes(np.array([7, 8, 9], np.float32).tobytes())
        blocks.from_bytes(bytes(range(34)))
        none.from_floats([])
        assert x.floats().tolist() == [7, 8, 9] and blocks.bytes() == bytes(range(34))
        for wrong in (
            lambda: x.from_floats([1]),
            lambda: x.from_ints([1, 2, 3]),
            lambda: i.from_ints([1.5, 2]),
            lambda: x.from_bytes(bytes(8)),
            lambda: y.from_floats([1, 2, 3]),
            lambda: x.reshape(3).from_floats([1, 2, 3]),
        ):
            with pytest.raises(TensorError):
                wrong()
        assert x.floats().tolist() == [7, 8, 9]
        ctx.close()
        with pytest.raises(GraphError, match="freed with its context"):
            x.from_floats([1, 2, 3])


@pytest.mark.parametrize("name", ["ggml", "reference"])
def test_tensors_of_layers_are_set_before_they_have_memory(name: str):
    backend = new_backend(MemorySource(METADATA, {}), BackendParams(num_threads=1), name)
    with backend, backend.new_context() as ctx:
        x = ctx.layer(0).from_floats([1, 2])
        x.from_floats([3, 4])
        backend.load()
        assert x.floats().tolist() == [3, 4]


def test_a_feed_sets_no_tensors_of_layers(ctx: Context):
    state = ctx.layer(0).zeros(DType.F32, 1)
    y = ctx.feed(lambda step: state.from_floats([1]), DType.F32, 1).sqr()
    with pytest.raises(GraphError, match="uses that very backend"):
        ctx.compute(y)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, i, y: x.from_floats([1]),
        lambda x, i, y: x.from_floats(np.zeros(4)),
        lambda x, i, y: x.from_ints([1, 2, 3]),
        lambda x, i, y: i.from_floats([1, 2]),
        lambda x, i, y: x.from_bytes(bytes(8)),
        lambda x, i, y: y.from_floats([1, 2, 3]),
    ],
)
def test_setting_takes_the_right_type_and_count(ctx: Context, wrong):
    x, i = ctx.input().empty(DType.F32, 3), ctx.input().empty(DType.I32, 2)
    with pytest.raises(TensorError):
        wrong(x, i, x.scale(2))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, 1.9], "1.9 is no int32"),
        ([2**40 + 3, 0], "1099511627779 is no int32"),
        ([-(2**31) - 1, 0], "-2147483649 is no int32"),
        ([2**70, 0], "no real numbers of at most 64 bits"),
        ([float("nan"), 0], "nan is no int32"),
        ([float("inf"), 0], "inf is no int32"),
        (["1", "2"], "no real numbers"),
        ([1j, 2], "no real numbers"),
        ([None, 2], "no real numbers"),
        ([[1, 2], [3]], "inhomogeneous"),
    ],
)
def test_integers_are_stored_as_they_are_or_not_at_all(ctx: Context, values: Any, reason: str):
    known = ctx.input().from_ints([5, 6])
    for store in (ctx.input().from_ints, known.from_ints):
        with pytest.raises(TensorError, match=f"values for I32: .*{reason}"):
            store(values)
    assert known.numpy().tolist() == [5, 6]


@pytest.mark.parametrize(
    "values",
    [[2.0, -(2**31)], np.array([7, 2**31 - 1]), np.array([1, 2], np.uint8), (True, False), []],
)
def test_whole_numbers_of_any_type_are_integers(ctx: Context, values: Any):
    assert ctx.input().from_ints(values).numpy().tolist() == list(values)


@pytest.mark.parametrize("values", [["1"], [1j], [None]])
def test_floats_are_numbers(ctx: Context, values: Any):
    with pytest.raises(TensorError, match="values for F32: these are no real n"):
        ctx.input().from_floats(values)


@pytest.mark.parametrize(
    "dtype", [DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.I64], ids=str
)
def test_inputs_without_elements_are_computed_with(ctx: Context, dtype: DType):
    x = ctx.input().zeros(dtype, 32, 0)
    part, y = x.permute(0, 2, 1, 3), ctx.input().from_floats([3.0]).sqr()
    ctx.compute(part, y)
    assert part.bytes() == b"" and y.floats().tolist() == [9]


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 0, 1), (3, 1, 1), (0, 3, -1), (0, 1, 0)])
def test_an_empty_range_is_an_error(ctx: Context, start: float, stop: float, step: float):
    with pytest.raises(TensorError, match="empty"):
        ctx.arange(start, stop, step)


# computing


def test_forward_chains_and_compute_returns_values(ctx: Context):
    x = ctx.input().from_floats([1.0, 2.0])
    a, b = x.scale(3), x.sqr()
    assert ctx.forward(a, b) is ctx
    ctx.forward(a, b).compute(a, b)
    assert a.floats().tolist() == [3, 6] and b.floats().tolist() == [1, 4]


def test_what_was_not_returned_has_no_value(ctx: Context):
    x = ctx.input().from_floats([1.0])
    a, b = x.scale(3), x.sqr()
    ctx.forward(a, b).compute(a)
    with pytest.raises(GraphError, match="no value"):
        b.floats()


def test_nothing_need_be_returned(ctx: Context):
    state = ctx.layer(0).zeros(DType.F32, 2)
    ctx.compute()  # nothing to do at all
    ctx.forward(ctx.input().from_floats([1.0, 2.0]).copy(state)).compute()
    assert state.floats().tolist() == [1, 2]


def test_writes_happen_in_the_order_of_forward(ctx: Context):
    state = ctx.layer(0).zeros(DType.F32, 2)
    one, two = (ctx.input().from_floats([v, v]) for v in (1.0, 2.0))
    write_two, write_one = two.copy(state), one.copy(state)  # recorded the other way round
    ctx.forward(write_one)
    between = state.scale(10)
    ctx.forward(between, write_two)
    after = state.scale(10)
    ctx.forward(after).compute(between, after)
    assert between.floats().tolist() == [10, 10]
    assert after.floats().tolist() == [20, 20]
    assert state.floats().tolist() == [2, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.scale(2),
        lambda x: x.clamp(-9, 9),
        lambda x: x.scale(2).reshape(8, 8),
        lambda x: x.cast(DType.F16),
    ],
)
def test_outputs_keep_their_values_though_later_ops_need_memory(
    backend: Backend, ctx: Context, make
):
    x = ctx.input().from_floats(normal(64))
    kept = make(x)
    alone = kept.cast(DType.F32) if kept.dtype is DType.F16 else kept
    last = alone
    for _ in range(12):  # takes memory, and gives it back, again and again
        last = (last.neg() * last.tanh() + last.abs()).tanh()
    ctx.compute(kept, last)
    with backend.new_context() as other, other.trace():
        again = make(other.input().from_floats(normal(64)))
        other.forward(again).compute(again)
        np.testing.assert_array_equal(kept.numpy(), again.numpy())
    assert np.isfinite(last.floats()).all()


def test_notification_comes_once_before_values(ctx: Context):
    seen = []
    y = ctx.input().from_floats([2.0]).sqr()
    ctx.compute_with_notify(lambda: seen.append(y.value), y)
    assert seen == [None]
    assert y.floats().tolist() == [4]


def test_an_error_in_the_notification_leaves_the_backend_usable(ctx: Context):
    def fail() -> None:
        raise RuntimeError("stop")

    y = ctx.input().from_floats([2.0]).sqr()
    with pytest.raises(RuntimeError, match="stop"):
        ctx.compute_with_notify(fail, y)
    ctx.compute(y)
    assert y.floats().tolist() == [4]


def test_states_outlive_graphs(backend: Backend):
    with backend.new_context() as owner:
        state = owner.layer(1).zeros(DType.F32, 3)
        for i in range(3):
            with backend.new_context() as ctx, ctx.trace():
                grown = state + ctx.input().from_floats([1.0, 2.0, float(i)])
                ctx.forward(grown.copy(state)).compute()
        assert state.floats().tolist() == [3, 6, 3]


def test_states_begin_as_given(ctx: Context):
    state = ctx.layer(0).from_floats([1.0, 2.0])
    assert state.floats().tolist() == [1, 2]
    y = state.scale(2)
    ctx.forward(y).compute(y)
    assert y.floats().tolist() == [2, 4]


def test_a_state_goes_with_its_context(backend: Backend):
    with backend.new_context() as owner:
        state = owner.layer(0).zeros(DType.F32, 3)
    with backend.new_context() as ctx, ctx.trace():
        y = state.scale(1)
        with pytest.raises(GraphError, match="freed"):
            ctx.forward(y).compute(y)
    with pytest.raises(GraphError, match="no value"):
        state.floats()


def test_reserving_makes_room_and_computes_nothing():
    with backend_of() as backend, backend.new_context() as ctx, ctx.trace():
        state = ctx.layer(0).zeros(DType.F32, 4096)
        assert backend.backend_memory().cpu.graph == 0
        ctx.forward((state.fill(1) + state.fill(2)).copy(state))
        ctx.reserve()
        reserved = backend.backend_memory().cpu.graph
        assert reserved >= 4096 * 4
        assert not state.floats().any()
        ctx.compute()
        assert backend.backend_memory().cpu.graph == reserved
        assert state.floats().tolist() == [3] * 4096


# limits and ends


def test_node_limits():
    with backend_of() as backend:
        assert backend.new_context().max_graph_nodes() == 1024
        for wrong in (0, -1, 1025):
            with pytest.raises(Unsupported):
                backend.new_context_size(wrong)
        with backend.new_context_size(3) as ctx, ctx.trace():
            assert ctx.max_graph_nodes() == 3
            x = ctx.input().from_floats([1.0]).neg().neg().neg()
            with pytest.raises(GraphError, match="more than 3 ops"):
                x.neg()
    with backend_of({f"blk.0.{i}": np.zeros(1, np.float32) for i in range(40)}) as backend:
        assert backend.new_context().max_graph_nodes() == 32 * 40


def test_a_closed_context_does_nothing(backend: Backend):
    ctx = backend.new_context()
    x = ctx.input().from_floats([1.0])
    ctx.close()
    ctx.close()
    for use in (
        lambda: ctx.input(),
        lambda: ctx.layer(0),
        lambda: ctx.trace(),
        lambda: ctx.forward(x),
        lambda: ctx.compute(),
        lambda: ctx.reserve(),
        lambda: ctx.arange(0, 3),
        lambda: x.scale(2),
    ):
        with pytest.raises(GraphError, match="closed"):
            use()


def test_contexts_that_outlive_their_backend():
    backend = backend_of({"w": normal(4)})
    ctx = backend.new_context()
    w = backend.get("w")
    assert w is not None
    state = ctx.layer(0).zeros(DType.F32, 3)
    y = ctx.input().from_floats([1.0]).scale(2)
    ctx.compute(y)
    executable = backend.compile(ctx.graph, ())
    backend.close()
    for use in (
        lambda: ctx.input(),
        lambda: ctx.forward(y),
        lambda: ctx.compute(y),
        lambda: ctx.reserve(),
        lambda: state.floats(),
        lambda: w.floats(),
        lambda: backend.compile(ctx.graph, ()),
        lambda: executable.run(),
        lambda: executable.value(y),
    ):
        with pytest.raises(GraphError):
            use()
    assert y.floats().tolist() == [2]  # its own copy
    ctx.close()


def test_graphs_do_not_mix(backend: Backend):
    with backend.new_context() as one, backend.new_context() as two:
        a, b = one.input().from_floats([1.0]), two.input().from_floats([1.0])
        with pytest.raises(GraphError, match="another graph"):
            a.add(b)
        with pytest.raises(GraphError, match="another graph"):
            two.forward(a.scale(1))
        with pytest.raises(GraphError, match="another graph"):
            two.compute(a)


def test_ops_on_weights_need_a_trace():
    with backend_of({"w": normal(4)}) as backend:
        w = backend.get("w")
        assert w is not None
        with pytest.raises(GraphError, match="trace"):
            w.scale(2)
        with backend.new_context() as ctx:
            with ctx.trace():
                y = w.scale(2)
            with pytest.raises(GraphError, match="trace"):
                w.scale(2)
            z = y.neg()  # belongs to the graph already
            ctx.forward(z).compute(z)
            np.testing.assert_array_equal(z.floats(), -2 * normal(4))


# errors


def here() -> int:
    import sys

    return sys._getframe(1).f_lineno


def test_a_wrong_product_names_everything(ctx: Context):
    w, x = ctx.input().zeros(DType.F32, 4, 5), ctx.input().zeros(DType.F32, 3, 2)
    w.name = "blk.0.ffn"
    line = here() + 2
    with pytest.raises(TensorError) as caught:
        w.mulmat(x)
    text = str(caught.value)
    for part in ("mulmat", "'blk.0.ffn'", "[4, 5]", "[3, 2]", "F32", f"{__file__}:{line}"):
        assert part in text


def test_an_assert_of_ggml_is_an_error_too(monkeypatch: pytest.MonkeyPatch):
    from ggmodel.ml.ggml.emitters import EMITTERS
    from ggmodel.native import lib

    with backend_of() as backend, backend.new_context() as ctx, ctx.trace():
        x = ctx.input().from_floats(normal(2, 3))
        with monkeypatch.context() as patched:
            patched.setitem(EMITTERS, "sqr", lambda c, x, a: lib.ggml_reshape_1d(c, x[0], 7))
            ctx.graph.scope = "blk.7.attn"
            line = here() + 1
            y = x.sqr()
            ctx.graph.scope = ""
            for _ in range(3):
                with pytest.raises(TensorError) as caught:
                    ctx.compute(y)
        text = str(caught.value)
        for part in ("sqr", "GGML_ASSERT", "in module blk.7.attn", "[3, 2]", f"{__file__}:{line}"):
            assert part in text
        ctx.compute(y)
        np.testing.assert_array_equal(y.numpy(), np.square(normal(2, 3)))


def test_an_op_without_a_kernel_is_refused(ctx: Context):
    state = ctx.layer(0).zeros(DType.IQ2_XS, 256, 2)
    y = ctx.input().zeros(DType.F32, 256, 2).copy(state)
    with pytest.raises(TensorError, match=r"(?s)copy: .*no kernel.*IQ2_XS"):
        ctx.compute(y)


@pytest.mark.parametrize("dtype", [DType.Q8_1, DType.Q8_K, DType.F64, DType.I8, DType.I16], ids=str)
def test_dtypes_without_kernels_are_refused_while_recording(ctx: Context, dtype: DType):
    w = ctx.input().zeros(dtype, 256, 2)
    x = ctx.input().zeros(DType.F32, 256, 3)
    ids = ctx.input().zeros(DType.I32, 1)
    for op in (
        lambda: w.mulmat(x),
        lambda: w.rows(ids),
        lambda: w.cast(DType.F32),
        lambda: w.add(x),
        lambda: w.set_rows(x.slice(1, 0, 1), ids),
        lambda: x.slice(1, 0, 2).copy(w),
        lambda: w.mulmat_id(x, ids),
    ):
        with pytest.raises(TensorError):
            op()


BAD = [[-1, 0], [0, 6], [2**31 - 1, 0], [-(2**31), 0]]


@pytest.mark.parametrize("ids", BAD, ids=str)
@pytest.mark.parametrize(
    "how",
    ["rows", "set_rows", "mulmat_id", "add_id", "slice", "copied", "joined", "cast", "repeated"],
)
def test_indices_out_of_range_are_found_before_computing(ctx: Context, how: str, ids: list[int]):
    table = ctx.input().from_floats(normal(6, 4))
    i = ctx.input().from_ints(ids)
    if how == "rows":
        y = table.rows(i)
    elif how == "set_rows":
        y = table.duplicate().set_rows(ctx.input().zeros(DType.F32, 4, 2), i)
    elif how == "mulmat_id":
        experts = ctx.input().zeros(DType.F32, 4, 3, 6)
        y = experts.mulmat_id(ctx.input().zeros(DType.F32, 4, 1, 1), i.reshape(2, 1))
    elif how == "add_id":
        y = ctx.input().zeros(DType.F32, 4, 2, 1).add_id(table, i.reshape(2, 1))
    elif how == "slice":
        y = table.rows(i.concat(i, 0).duplicate().slice(0, 0, 4, 2))
    elif how == "copied":
        y = table.rows(i.duplicate())
    elif how == "joined":
        y = table.rows(ctx.input().from_ints([1, 2]).concat(i, 0))
    elif how == "repeated":
        y = table.rows(i.repeat(0, 3))
    else:
        y = table.rows(ctx.input().from_floats(np.array(ids, np.float32)).cast(DType.I32))
    if how == "slice" and ids[0] == 0:
        ids[:] = ids[::-1]
        i.from_ints(ids)
    with pytest.raises(ComputeError, match=r"selects rows"):
        ctx.compute(y)
    if how != "cast":
        i.from_ints([5, 0])
        ctx.compute(y)
        assert np.isfinite(y.floats()).all()


def test_only_the_indices_that_are_read_are_checked(ctx: Context):
    big, small = ctx.input().from_floats(normal(9, 2)), ctx.input().from_floats(normal(2, 2))
    ids = ctx.input().from_ints([8, 7, 1, 0])
    a, b = big.rows(ids.slice(0, 0, 2)), small.rows(ids.slice(0, 2, 4))
    ctx.compute(a, b)
    np.testing.assert_array_equal(a.numpy(), normal(9, 2)[[8, 7]])
    np.testing.assert_array_equal(b.numpy(), normal(2, 2)[[1, 0]])
    c = small.rows(ids.slice(0, 1, 3))
    with pytest.raises(ComputeError, match="selects rows 1 to 7 of 2"):
        ctx.compute(c)


def test_nan_is_no_index(ctx: Context):
    ids = ctx.input().from_floats([float("nan"), 0])
    y = ctx.input().from_floats(normal(3, 2)).rows(ids.cast(DType.I32))
    with pytest.raises(ComputeError):
        ctx.compute(y)


def test_indices_in_a_weight_are_checked():
    weights = {"ids": np.array([0, 9], np.int32), "w": normal(3, 4)}
    with backend_of(weights) as backend, backend.new_context() as ctx, ctx.trace():
        w, ids = backend.get("w"), backend.get("ids")
        assert w is not None and ids is not None
        y = w.rows(ids)
        with pytest.raises(ComputeError, match="'ids'"):
            ctx.compute(y)


# memory


@pytest.mark.parametrize("shape", [(1 << 50,), (1 << 40, 1 << 10), (1 << 62,), (1 << 62, 1 << 62)])
def test_more_memory_than_there_is_is_an_error(shape: tuple[int, ...]):
    with backend_of() as backend, backend.new_context() as ctx, ctx.trace():
        with pytest.raises(OutOfMemory) as caught:
            ctx.layer(1).zeros(DType.F32, *shape)
        memory: Any = caught.value.memory
        assert memory.cpu.cache[1] == 4 * np.prod([int(n) for n in shape], dtype=object)
        with pytest.raises(OutOfMemory):
            ctx.input().zeros(DType.F32, *shape)
        y = ctx.input().from_floats([2.0]).sqr()
        ctx.forward(y).compute(y)
        assert y.floats().tolist() == [4]
        ctx.close()
        assert backend.backend_memory().cpu.cache == [0, 0, 0]


def test_a_failed_allocation_reports_its_own_size():
    with backend_of() as backend, backend.new_context() as ctx:
        for cells in (1 << 50, 1 << 51, 1 << 50):
            with pytest.raises(OutOfMemory) as caught:
                ctx.layer(0).zeros(DType.F32, cells)
            memory: Any = caught.value.memory
            assert memory.cpu.cache[0] == 4 * cells
        assert backend.backend_memory().cpu.cache == [0, 0, 0]


def test_reports_count_one_failure_and_what_was_taken():
    """Larger and smaller attempts, each with other parts of the memory, in one backend."""
    with backend_of() as backend, backend.new_context() as taken, taken.trace():
        taken.forward(taken.feed(lambda step: 0, DType.F32, 1000).sqr()).reserve()
        kept = backend.backend_memory().size()

        def result(ctx: Context, n: int) -> None:
            ctx.forward(ctx.input().from_floats([1.0]).repeat_4d(n, 1, 1, 1).sqr()).reserve()

        def fed(ctx: Context, n: int) -> None:
            ctx.forward(ctx.feed(lambda step: 0, DType.F32, n).sqr()).reserve()

        def state(ctx: Context, n: int) -> None:
            ctx.layer(0).zeros(DType.F32, n)

        for attempt, log in (
            (result, 44), (result, 40), (fed, 42), (result, 40), (state, 43), (fed, 40), (state, 41)
        ):  # fmt: skip
            with backend.new_context() as ctx, ctx.trace(), pytest.raises(OutOfMemory) as caught:
                attempt(ctx, 1 << log)
            memory: Any = caught.value.memory
            own, cpu = 4 << log, memory.cpu
            assert memory.size() == sum(cpu.weights) + sum(cpu.cache) + cpu.graph
            assert own <= memory.size() <= own + kept, (attempt, log)
            assert cpu.status is AllocationStatus.FAILED
            assert (sum(cpu.cache) == own) == (attempt is state)
        with backend.new_context() as ctx, ctx.trace():
            result(ctx, 16)
        assert backend.backend_memory().size() <= kept


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Control groups leave this process a MiB."""
    monkeypatch.setattr(module, "total_memory", lambda: 1 << 20)
    module._most_memory.cache_clear()
    yield
    module._most_memory.cache_clear()


@pytest.mark.usefixtures("little_memory")
def test_more_memory_than_control_groups_leave_is_an_error():
    with backend_of() as backend, backend.new_context() as ctx, ctx.trace():
        with pytest.raises(OutOfMemory):
            ctx.layer(0).zeros(DType.F32, (1 << 18) + 1)
        ctx.layer(0).zeros(DType.F32, 1 << 18)
        huge = ctx.input().from_floats(normal(1, 1)).repeat_4d(1 << 20, 1, 1, 1)
        with pytest.raises(OutOfMemory, match="compute buffer"):
            ctx.compute(huge)
        before = backend.backend_memory().cpu.graph
        ctx.forward(ctx.feed(lambda step: 0, DType.F32, (1 << 18) + 1).sqr())
        with pytest.raises(OutOfMemory, match="do not fit in the memory of CPU") as caught:
            ctx.reserve()
        memory: Any = caught.value.memory
        assert 1 << 20 < memory.cpu.graph < before  # the larger failure counts no more


@pytest.mark.usefixtures("little_memory")
def test_the_limit_is_asked_for_once(monkeypatch: pytest.MonkeyPatch):
    assert module.physically_possible(1 << 20) and not module.physically_possible(1 + (1 << 20))
    monkeypatch.setattr(module, "total_memory", lambda: pytest.fail("asked again"))
    assert module.physically_possible(1 << 20)


def test_a_compute_buffer_that_cannot_be_had_is_an_error():
    with backend_of() as backend, backend.new_context() as ctx, ctx.trace():
        x = ctx.input().from_floats(normal(1, 1))
        huge = x.repeat_4d(1 << 46, 1, 1, 1)
        with pytest.raises(OutOfMemory) as caught:
            ctx.compute(huge)
        assert caught.value.memory is not None
    with backend.new_context() if not backend.closed else backend_of().new_context() as ctx:
        y = ctx.input().from_floats([2.0]).sqr()
        ctx.compute(y)
        assert y.floats().tolist() == [4]


def test_graphs_are_dead_whose_memory_was_freed_for_one_that_does_not_fit():
    with backend_of() as backend, backend.new_context() as ctx, ctx.trace():
        small = ctx.input().from_floats(normal(1 << 10)).exp().sqr()
        executable = backend.compile(ctx.forward(small).graph, (small,))
        executable.run()
        with backend.new_context() as other, other.trace():
            huge = other.input().from_floats(normal(1, 1)).repeat_4d(1 << 46, 1, 1, 1)
            with pytest.raises(OutOfMemory):
                other.compute(huge)
        assert not executable.valid
        with pytest.raises(GraphError, match="compile it again"):
            executable.run()
