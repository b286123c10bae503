"""Biases, activations and residuals that join the op before them: the bits of ops one by one,
values of float64, and every op for those who look at it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import GraphError, OutOfMemory
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import BackendParams, Context, DType, Tensor, new_backend
from ggmodel.ml.ggml import measurements, products
from ggmodel.ml.ggml.endings import ACTIVATIONS
from ggmodel.ml.ggml.lowering import GGMLExecutable
from ggmodel.native import lib
from tests.ml.harness import METADATA, blocks, nmse, normal

ALL = len(products.NAMES)
INSTRUCTIONS = [i for i in range(1, ALL) if lib.ggmodel_use_products(i) == i]
BEST = lib.ggmodel_use_products(ALL)
pytestmark = pytest.mark.skipif(not BEST, reason="no kernels for this processor")

Build = Callable[[Context, Callable[[str], Tensor]], list[Tensor]]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chooses our kernels, whatever is faster, and however small weights are."""
    everywhere = (True,) * len(measurements.COLUMNS)
    monkeypatch.setattr(measurements, "own_is_faster", lambda dtype: everywhere)
    monkeypatch.setattr(measurements, "plain_is_faster", lambda *of: everywhere)
    monkeypatch.setattr(products, "LEAST", 1)
    yield
    lib.ggmodel_use_products(ALL)


def weights(dtype: DType, rows: int, width: int) -> dict[str, Any]:
    """A matrix "w" [width, rows], and a bias "b" [rows]."""
    values = normal(rows, width) / 8
    if dtype.is_quantized:
        matrix: Any = (dtype, (width, rows), blocks(dtype, values).data)
    else:
        matrix = values.astype(dtype.numpy)
    return {"w": matrix, "b": normal(rows, seed=1)}


@contextmanager
def compiled(
    build: Build, tensors: dict[str, Any], **params: Any
) -> Iterator[tuple[GGMLExecutable, list[Tensor]]]:
    """A graph that can run, and its outputs."""
    source = MemorySource(METADATA, tensors)
    with (
        new_backend(source, BackendParams(**{"num_threads": 1, **params})) as backend,
        backend.new_context() as ctx,
    ):
        with ctx.trace():

            def weight(name: str) -> Tensor:
                t = backend.get(name)
                assert t is not None
                return t

            results = build(ctx, weight)
            ctx.forward(*results)
        backend.allocate(ctx.graph)
        backend.load()
        with closing(backend.compile(ctx.graph, tuple(results))) as executable:
            assert isinstance(executable, GGMLExecutable)
            yield executable, results


def count_of(executable: GGMLExecutable) -> int:
    """The number of endings of several ops."""
    return sum(bool(ending.inner) for ending in executable._endings.values())


def computed(
    build: Build, tensors: dict[str, Any], fuses: bool = True, **params: Any
) -> tuple[list[np.ndarray], int]:
    """The values of a graph's outputs, and the number of endings."""
    with compiled(build, tensors, **params) as (executable, results):
        if not fuses:
            executable.run_each(None, lambda node, value: None)
        executable.run()
        return [executable.value(y).copy() for y in results], count_of(executable)


def whole(x: np.ndarray, activation: str, residual: bool) -> Build:
    """activation(w x + b), and x or a part of it added."""

    def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
        y = weight("w").mulmat(ctx.input().from_floats(x)) + weight("b")
        if activation:
            y = getattr(y, activation)()
        if residual:
            y = ctx.input().from_floats(normal(*y.shape[::-1], seed=2)) + y
        return [y]

    return build


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_K, DType.F16, DType.F32], ids=str)
def test_bits_are_those_of_ops_one_by_one(dtype: DType, deterministic: bool):
    random = np.random.default_rng(3)
    for columns in (1, 2, 7, 8, 9, 16, 17, 33, 70):
        rows, activation = int(random.integers(1, 130)), ACTIVATIONS[columns % 6]
        tensors, x = weights(dtype, rows, 256), normal(columns, 256, seed=4)
        build = whole(x, activation, columns % 4 > 0)
        params = {"deterministic": deterministic}
        (apart,), none = computed(build, tensors, fuses=False, **params)
        assert not none
        for instructions in INSTRUCTIONS:
            lib.ggmodel_use_products(instructions)
            (got,), count = computed(build, tensors, num_threads=2, **params)
            assert count == 1
            np.testing.assert_array_equal(got, apart)


def gated(x: np.ndarray, activation: str, residual: bool) -> Build:
    """activation(w x + b) · (w 2x), and a residual."""

    def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
        gate, up = (weight("w").mulmat(ctx.input().from_floats(x * i)) for i in (1, 2))
        gate = gate + weight("b")
        if activation == "gelu_erf":
            y = up * gate.gelu_erf()
        else:
            y = getattr(gate, activation)(up) if activation else gate * up
        return [y + ctx.input().from_floats(normal(*y.shape[::-1], seed=2)) if residual else y]

    return build


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_gate_is_the_end_of_its_product(activation: str, deterministic: bool):
    tensors = weights(DType.Q8_0, 50, 256)
    for columns in (1, 9, 33):
        x = normal(columns, 256, seed=4)
        build = gated(x, activation, columns > 1)
        (apart,), _ = computed(build, tensors, fuses=False, deterministic=deterministic)
        (ends, ups) = (whole(x * i, activation if i == 1 else "", False) for i in (1, 2))
        (gate,), (up,) = (computed(y, tensors, deterministic=deterministic)[0] for y in (ends, ups))
        want = gate * (up - tensors["b"]).astype(np.float32)
        if columns > 1:
            want = want + normal(columns, 50, seed=2)
        for instructions in INSTRUCTIONS:
            lib.ggmodel_use_products(instructions)
            (got,), count = computed(build, tensors, num_threads=2, deterministic=deterministic)
            assert count == 1
            np.testing.assert_array_equal(got, apart)
        assert nmse(got, want) < 1e-11


def test_a_gate_of_other_strides_or_type_is_left_to_ggml():
    tensors = {"b": normal(1)}

    def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
        x, half = ctx.input().from_floats(normal(2, 64)), ctx.input().from_floats(normal(2, 64))
        return [x.silu(half.slice(0, 0, 32).pad(32)), x.cast(DType.F16).silu(half.cast(DType.F16))]

    with compiled(build, tensors) as (executable, _):
        assert len(executable._endings) == 1


def exact(name: str, x: np.ndarray) -> np.ndarray:
    """An activation in float64."""
    if name == "gelu_erf":
        return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])
    if name == "relu":
        return np.maximum(x, 0)
    y = {
        "gelu": 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3),
        "quick_gelu": 1.702 * x,
        "silu": x,
    }[name]
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-y))


@pytest.mark.parametrize("name", ACTIVATIONS[1:])
def test_activations_are_exact_to_four_units_in_the_last_place(name: str):
    """Units of the argument; a result above 1e-6 is within 3e-6: a tail's exponent is rounded."""
    x = np.concatenate([np.linspace(-30, 30, 60001), np.logspace(-30, 30, 500)]).astype(np.float32)
    x = np.concatenate([x, -x, [0, -0.0, np.inf]]).astype(np.float32)
    (got,), _ = computed(
        lambda ctx, weight: [getattr(ctx.input().from_floats(x), name)()], {"b": normal(1)}
    )
    want = exact(name, x.astype(np.float64))
    got = got.reshape(-1)
    assert got[-1] == np.inf
    error = np.abs(got[:-1] - want[:-1])
    assert (error <= 4 * np.spacing(np.abs(x[:-1]))).all()
    large = np.abs(want[:-1]) > 1e-6
    assert (error[large] <= 3e-6 * np.abs(want[:-1][large])).all()


def test_no_number_stays_none():
    for name in ACTIVATIONS[2:]:
        ((got,), _) = computed(
            lambda ctx, weight, name=name: [
                getattr(ctx.input().from_floats(np.full(3, np.nan, np.float32)), name)()
            ],
            {"b": normal(1)},
        )
        assert np.isnan(got).all()


def test_what_is_read_elsewhere_stays_an_op():
    """An output, and a result with two readers."""
    tensors, x = weights(DType.Q8_0, 48, 64), normal(5, 64)

    def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
        biased = weight("w").mulmat(ctx.input().from_floats(x)) + weight("b")
        active = biased.gelu_erf()
        return [biased, active + active]

    got, count = computed(build, tensors)
    apart, _ = computed(build, tensors, fuses=False)
    assert count == 1
    for ours, theirs in zip(got, apart, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_two_products_are_added():
    tensors, x = weights(DType.F16, 48, 64), normal(5, 64)

    def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
        a, b = (weight("w").mulmat(ctx.input().from_floats(x * i)) for i in (1, 2))
        return [a + b]

    (got,), count = computed(build, tensors)
    (apart,), _ = computed(build, tensors, fuses=False)
    assert count == 1
    np.testing.assert_array_equal(got, apart)


def test_nothing_moves_behind_a_write():
    """An operand of the product is overwritten before the residual is known."""
    tensors, x = weights(DType.Q8_0, 64, 64), normal(5, 64)

    def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
        activations = ctx.input().from_floats(x) * 1.0
        y = weight("w").mulmat(activations)
        ctx.forward(y)
        twice = ctx.input().from_floats(2 * x)
        return [y + activations.set_inplace(twice, *activations.nb[1:], 0)]

    (got,), count = computed(build, tensors)
    (apart,), _ = computed(build, tensors, fuses=False)
    assert not count
    np.testing.assert_array_equal(got, apart)


@pytest.mark.parametrize("write", ["copy", "set_rows"])
def test_nothing_moves_behind_a_write_to_a_cache(write: str):
    """The product reads what is overwritten before the residual is added."""
    tensors, x = weights(DType.Q8_0, 64, 64), normal(5, 64)

    def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
        state = ctx.layer(0).zeros(DType.F32, 64, 5)
        first, second = (ctx.input().from_floats(x * i) for i in (1, 2))
        ctx.forward(first.copy(state))
        y = weight("w").mulmat(state)
        ctx.forward(y)
        if write == "copy":
            ctx.forward(second.copy(state))
        else:
            ctx.forward(state.set_rows(second, ctx.input().from_ints(np.arange(5))))
        return [y + ctx.input().from_floats(normal(5, 64, seed=2))]

    (got,), count = computed(build, tensors)
    assert not count
    product = computed(lambda ctx, w: [w("w").mulmat(ctx.input().from_floats(x))], tensors)[0][0]
    np.testing.assert_array_equal(got, product + normal(5, 64, seed=2))


def test_a_bias_that_stands_first_is_added():
    tensors, x = weights(DType.Q8_0, 48, 64), normal(1, 64)

    def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
        return [(weight("b") + weight("w").mulmat(ctx.input().from_floats(x))).relu()]

    (got,), count = computed(build, tensors)
    (apart,), _ = computed(build, tensors, fuses=False)
    (behind,), _ = computed(whole(x, "relu", False), tensors)
    assert count == 1
    np.testing.assert_array_equal(got, apart)
    np.testing.assert_array_equal(got.reshape(-1), behind.reshape(-1))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS[1:])
def test_parts_of_rows_have_the_same_bits_in_any_company(name: str, deterministic: bool):
    """Two columns of a part have a gap between them, one has none."""
    tensors, x = weights(DType.Q8_0, 48, 64), normal(2, 64)

    def part(n: int) -> np.ndarray:
        def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
            y = weight("w").mulmat(ctx.input().from_floats(x[:n]))
            return [getattr(y.slice(0, 0, 24), name)()]

        (got,), _ = computed(build, tensors, deterministic=deterministic)
        return got.reshape(n, 24)

    np.testing.assert_array_equal(part(1)[0], part(2)[0])


def test_processors_without_kernels_join_nothing(monkeypatch: pytest.MonkeyPatch):
    nowhere = (False,) * len(measurements.COLUMNS)
    monkeypatch.setattr(measurements, "own_is_faster", lambda dtype: nowhere)
    tensors, build = weights(DType.Q8_0, 48, 64), whole(normal(5, 64), "gelu", True)
    (ours,), _ = computed(build, tensors)
    lib.ggmodel_use_products(0)
    with compiled(build, tensors) as (executable, (y,)):
        assert not executable._endings
        executable.run()
        assert nmse(executable.value(y), ours) < 1e-6  # ggml's GELU reads a table in F16


def test_a_result_that_is_changed_stays_an_op():
    tensors, x = weights(DType.Q8_0, 48, 64), normal(5, 64)

    def build(ctx: Context, weight: Callable[[str], Tensor]) -> list[Tensor]:
        product = weight("w").mulmat(ctx.input().from_floats(x))
        return [product, (product + weight("b")).relu()]

    with compiled(build, tensors) as (executable, (product, y)):
        executable.run_edited(None, {product: lambda value: value.fill(3)})
        want = np.maximum(3 + tensors["b"], 0)
        np.testing.assert_array_equal(executable.value(y)[0, 0], np.broadcast_to(want, (5, 48)))


def test_all_ops_are_seen_and_timed():
    tensors, x = weights(DType.Q8_0, 48, 64), normal(5, 64)
    with compiled(whole(x, "gelu", False), tensors) as (executable, (y,)):
        seconds = executable.run_apart()
        assert [s > 0 for s in seconds] == [True, False, False]
        fused = executable.value(y).copy()
        names: list[str] = []
        executable.run_each(None, lambda node, _: names.append(node.op.name if node.op else ""))
        assert names == ["mulmat", "add", "gelu"]
        np.testing.assert_array_equal(executable.value(y), fused)
        assert all(s > 0 for s in executable.run_apart())


@pytest.mark.parametrize("error", [OutOfMemory, KeyboardInterrupt])
def test_a_graph_that_cannot_be_laid_out_anew_is_closed(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
):
    tensors, build = weights(DType.Q8_0, 48, 64), whole(normal(5, 64), "gelu", True)

    def fails(*of: Any) -> bool:
        if error is KeyboardInterrupt:
            raise KeyboardInterrupt
        return False

    with compiled(build, tensors) as (executable, _):
        with monkeypatch.context() as patch:
            patch.setattr(executable._compute, "lay_out", fails)
            with pytest.raises(error):
                executable.run_each(None, lambda node, value: None)
        assert not executable.valid
        with pytest.raises(GraphError, match="compile it again"):
            executable.run()
