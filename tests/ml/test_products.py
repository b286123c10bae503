"""Products by our own kernels: ggml's results, float64's where it can be, the same bits in any
company."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.gguf_file import MemorySource
from ggmodel.ml import BackendParams, DType, Tensor, new_backend, table
from ggmodel.ml.ggml import measurements, products
from ggmodel.ml.ggml.ggml_backend import GGMLBackend
from ggmodel.ml.ggml.ordered import ours
from ggmodel.native import build, lib
from tests.ml.harness import METADATA, Blocks, blocks, nmse, normal

ALL = len(products.NAMES)
INSTRUCTIONS = [i for i in range(1, ALL) if lib.ggmodel_use_products(i) == i]
BEST = lib.ggmodel_use_products(ALL)
SERVED = [dtype for dtype in DType if products.serves(dtype)]
QUANTISED = [dtype for dtype in SERVED if dtype.is_quantized]
NEEDS_FAMILY = pytest.mark.skipif(not BEST, reason="no kernels for this processor")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Chooses our kernels, whatever is faster; or ggml's."""

    def choose(own: bool) -> None:
        count = len(measurements.COLUMNS)
        monkeypatch.setattr(measurements, "own_is_faster", lambda dtype: (own,) * count)
        monkeypatch.setattr(measurements, "plain_is_faster", lambda *of: (True,) * count)
        monkeypatch.setattr(products, "LEAST", 1)

    choose(True)
    yield choose
    lib.ggmodel_use_products(ALL)


def some(dtype: DType, rows: int, width: int) -> Blocks:
    """Weights of a type that numpy may have."""
    if dtype.is_quantized or dtype is DType.BF16:
        return blocks(dtype, normal(rows, width))
    values = normal(rows, width).astype(dtype.numpy)
    return Blocks(dtype, values.tobytes(), values.astype(np.float64))


def multiplied(
    matrices: Sequence[Blocks],
    x: np.ndarray,
    threads: int = 1,
    own: bool = True,
    deterministic: bool = False,
) -> list[np.ndarray]:
    """The products of weights and the same activations, in one graph."""
    weights = {
        str(i): (matrix.dtype, matrix.values.shape[::-1], matrix.data)
        for i, matrix in enumerate(matrices)
    }
    source = MemorySource(METADATA, weights)
    params = BackendParams(num_threads=threads, deterministic=deterministic)
    with new_backend(source, params) as backend, backend.new_context() as ctx:
        assert isinstance(backend, GGMLBackend)
        with ctx.trace():
            activations = ctx.input().from_floats(x)
            results: list[Tensor] = []
            for name in weights:
                weight = backend.get(name)
                assert weight is not None
                results.append(weight.mulmat(activations))
            ctx.forward(*results)
        backend.allocate(ctx.graph)
        backend.load()
        is_ours = ours if deterministic else backend.weights.multiplied
        assert [is_ours(y) for y in results] == [own] * len(results)
        ctx.compute(*results)
        return [y.numpy().reshape(*x.shape[:-1], -1) for y in results]


@NEEDS_FAMILY
def test_types_with_a_kernel():
    """All that ggml multiplies."""
    assert set(SERVED) == table.NUMBERS


@NEEDS_FAMILY
def test_numbers_are_those_of_the_kernels():
    """And a trial tells few columns from more."""
    header = Path(build.__file__).with_name("products.h").read_text(encoding="utf-8")
    for name, number in (("BLOCK", products._BLOCK), ("FEW", products._FEW)):
        assert re.findall(rf"^#define {name} +(\d+)", header, re.M) == [str(number)]
    assert products._FEW + 1 in measurements.COLUMNS


@NEEDS_FAMILY
@pytest.mark.parametrize("dtype", QUANTISED, ids=lambda dtype: dtype.name)
def test_results_are_those_of_ggml(dtype: DType, always: Callable[[bool], None]):
    """Activations are rounded alike: what differs is the order of float32's sums, and the repacked
    layout's scales of Q8_K."""
    weight, x = some(dtype, 70, 512), normal(40, 512, seed=1)
    x[3:5, 256:] = 0
    (own,) = multiplied([weight], x)
    always(False)
    (theirs,) = multiplied([weight], x, own=False)
    assert nmse(own, theirs) < 1e-10


@NEEDS_FAMILY
@pytest.mark.parametrize("shape", [(1, 512, 1), (33, 256, 3), (64, 2304, 40)], ids=str)
@pytest.mark.parametrize("dtype", SERVED, ids=lambda dtype: dtype.name)
def test_errors_are_no_larger_than_those_of_ggml(
    dtype: DType, shape: tuple[int, int, int], always: Callable[[bool], None]
):
    """Beside float64. Activations of quantised weights are rounded alike, which is nearly all of
    the error; those of floats are rounded by less, or not."""
    rows, width, columns = shape
    weight, x = some(dtype, rows, width), normal(columns, width, seed=7)
    want = x.astype(np.float64) @ weight.values.T
    (own,) = multiplied([weight], x)
    always(False)
    (theirs,) = multiplied([weight], x, own=False)
    assert nmse(own, want) <= 1.001 * nmse(theirs, want) + 1e-14


@NEEDS_FAMILY
@pytest.mark.parametrize("dtype", SERVED, ids=lambda dtype: dtype.name)
def test_whole_numbers_are_exact(dtype: DType):
    """Activations that eight bits hold leave float32's rounding alone."""
    weight = some(dtype, 33, 256)
    x = np.random.default_rng(0).integers(-127, 128, (19, 256)).astype(np.float32)
    x[:, ::32] = 127
    (got,) = multiplied([weight], x, deterministic=not dtype.is_quantized)
    assert nmse(got, x.astype(np.float64) @ weight.values.T) < 1e-12


@NEEDS_FAMILY
@pytest.mark.parametrize("dtype", SERVED, ids=lambda dtype: dtype.name)
def test_bits_do_not_depend_on_columns_threads_and_instructions(dtype: DType):
    """Floats in deterministic mode."""
    weight, x = some(dtype, 100, 512), normal(37, 512, seed=2)
    params: dict[str, Any] = {"deterministic": not dtype.is_quantized}
    (whole,) = multiplied([weight], x, **params)
    for instructions in INSTRUCTIONS:
        lib.ggmodel_use_products(instructions)
        slices = ((0, 1, 1), (3, 5, 2), (2, 10, 1), (5, 14, 3), (0, 16, 2), (1, 37, 3))
        for first, last, threads in slices:
            (part,) = multiplied([weight], x[first:last], threads, **params)
            np.testing.assert_array_equal(part, whole[first:last])


FLOATS_OF_16_BITS = pytest.mark.parametrize(
    "dtype", [DType.F16, DType.BF16], ids=lambda dtype: dtype.name
)


def whole_numbers(values: np.ndarray, block: int, most: int) -> np.ndarray:
    """Multiples of the `most`-th part of the largest value of a block."""
    blocks = values.astype(np.float64).reshape(-1, block)
    step = np.maximum(np.abs(blocks).max(1, keepdims=True), 1e-30) / most
    return (np.rint(blocks / step) * step).reshape(values.shape)


@NEEDS_FAMILY
@FLOATS_OF_16_BITS
def test_many_columns_of_floats_are_rounded_to_whole_numbers(dtype: DType):
    """With the same bits for any number above eight; by NEON they are not rounded. Values of 15 and
    14 bits are off by less than activations in F16, whose NMSE is 4e-8 of any numbers: by 8e-9 of
    normal numbers, and 12e-9 where one of 50 is a thousand times larger."""
    weight, x = some(dtype, 100, 2080), normal(37, 2080, seed=2)
    x[3, ::50] *= 1000
    x[4] *= 1e-20
    x[5, 32:] = 0
    want = x.astype(np.float64) @ weight.values.T
    rounded = whole_numbers(x, 16, 16383) @ whole_numbers(weight.values, 32, 8191).T
    bits: set[bytes] = set()
    for instructions in INSTRUCTIONS:
        lib.ggmodel_use_products(instructions)
        (whole,) = multiplied([weight], x)
        rounds = lib.ggmodel_rounded_bytes(int(dtype), 32) > 0
        assert np.array_equal(whole, multiplied([weight], x, deterministic=True)[0]) != rounds
        for got, exact, alike in zip(whole, want, rounded if rounds else want, strict=True):
            assert nmse(got, alike) < 1e-9 and nmse(got, exact) < 2.5e-8
        for first, last, threads in ((0, 9, 1), (1, 37, 3)):
            (part,) = multiplied([weight], x[first:last], threads)
            np.testing.assert_array_equal(part, whole[first:last])
        bits.add(whole.tobytes())
    assert len(bits) == 1


@NEEDS_FAMILY
@FLOATS_OF_16_BITS
def test_errors_of_outliers_are_smaller_than_those_of_ggml(
    dtype: DType, always: Callable[[bool], None]
):
    """Activations a thousand times larger in few channels, as decoders have them; BF16 activations
    of ggml are off by more."""
    weight, x = some(dtype, 96, 2048), normal(40, 2048, seed=9)
    x[:, ::50] *= 1000
    want = x.astype(np.float64) @ weight.values.T
    (own,) = multiplied([weight], x)
    always(False)
    (theirs,) = multiplied([weight], x, own=False)
    assert nmse(own, want) < nmse(theirs, want) / 2


@NEEDS_FAMILY
@FLOATS_OF_16_BITS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_reach_their_elements(dtype: DType, value: float):
    """Activations reach their column, weights their row, from any place of a block; no other
    element changes."""
    finite, x = some(dtype, 80, 256), normal(40, 256, seed=8)
    numbers = np.frombuffer(finite.data, np.uint16).reshape(80, 256).copy()
    part = np.array(value, np.float32).view(np.uint32) >> 16
    bits = np.array(value, np.float16).view(np.uint16) if dtype is DType.F16 else part
    columns, rows = np.arange(2, 40, 3), np.arange(1, 80, 7)
    spoilt = x.copy()
    spoilt[columns, 37 * columns % 256] = value
    numbers[rows, 41 * rows % 256] = bits
    weight = Blocks(dtype, numbers.tobytes(), finite.values)
    for instructions in INSTRUCTIONS:
        lib.ggmodel_use_products(instructions)
        (want,) = multiplied([finite], x)
        want[columns] = np.nan
        want[:, rows] = np.nan
        (got,) = multiplied([weight], spoilt)
        rounds = lib.ggmodel_rounded_bytes(int(dtype), 32) > 0
        shown = np.where(np.isfinite(got), got, np.float32(np.nan))
        np.testing.assert_array_equal(got if rounds else shown, want)


@NEEDS_FAMILY
@pytest.mark.parametrize("columns", [1, 3, 40])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_quantised_products_lose_no_nan(columns: int, value: float):
    """An activation that is not finite makes all of its column NaN, and changes no other one."""
    x = normal(columns, 512, seed=8)
    spoilt, places = x.copy(), np.arange(0, columns, 3)
    spoilt[places, 37 * places % 512] = value
    for dtype in QUANTISED:
        weight = some(dtype, 80, 512)
        for instructions in INSTRUCTIONS:
            lib.ggmodel_use_products(instructions)
            (want,) = multiplied([weight], x)
            want[places] = np.nan
            np.testing.assert_array_equal(multiplied([weight], spoilt)[0], want)


@NEEDS_FAMILY
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("rows", [1, 15, 16, 97, 200])
@pytest.mark.parametrize("width", [32, 160, 384, 2016, 2048, 4128])
def test_shapes(rows: int, width: int, instructions: int):
    lib.ggmodel_use_products(instructions)
    x = normal(3, 4, width, seed=3)
    for dtype in (DType.Q8_0, DType.Q5_1, DType.F16, DType.BF16, DType.F32):
        weight = some(dtype, rows, width)
        (got,) = multiplied([weight], x, threads=2)
        bound = 1e-4 if dtype.is_quantized else 1e-7
        assert nmse(got, x.astype(np.float64) @ weight.values.T) < bound
        if not dtype.is_quantized:
            (got,) = multiplied([weight], x, threads=2, deterministic=True)
        (few,) = multiplied([weight], x[1:2], threads=2)
        np.testing.assert_array_equal(few, got[1:2])


@NEEDS_FAMILY
def test_products_of_the_same_activations_share_their_quantised_form():
    """And floats read the activations themselves."""
    types = (DType.Q4_K, DType.IQ2_S, DType.F16, DType.Q6_K, DType.NVFP4)
    weights = [some(t, 48, 256) for t in types]
    x = normal(20, 256, seed=4)
    together = multiplied(weights, x)
    for weight, got in zip(weights, together, strict=True):
        np.testing.assert_array_equal(got, multiplied([weight], x)[0])


def experts(weights: Blocks, x: np.ndarray, ids: np.ndarray, threads: int = 1) -> np.ndarray:
    """Each token's products with its experts, of weights [experts, m, k]: [tokens, used, m]."""
    shape = weights.values.shape[::-1]
    source = MemorySource(METADATA, {"w": (weights.dtype, shape, weights.data)})
    params = BackendParams(num_threads=threads)
    with new_backend(source, params) as backend, backend.new_context() as ctx:
        assert isinstance(backend, GGMLBackend)
        with ctx.trace():
            weight = backend.get("w")
            assert weight is not None
            chosen = ctx.input().from_ints(ids)
            y = weight.mulmat_id(ctx.input().from_floats(x), chosen)
            ctx.forward(y)
        backend.allocate(ctx.graph)
        backend.load()
        assert backend.weights.multiplied(y)
        ctx.compute(y)
        return y.numpy()


EXPERTS = [DType.Q4_K, DType.Q6_K, DType.MXFP4, DType.IQ3_S, DType.BF16]


@NEEDS_FAMILY
@pytest.mark.parametrize("inputs", [1, 2, 4])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", EXPERTS, ids=lambda t: t.name)
def test_experts_are_products_of_their_own_columns(dtype: DType, threads: int, inputs: int):
    """Expert 5 has most columns, 2 none; an input is read by 4, 2 or 1 of the experts used."""
    flat = some(dtype, 280, 256)
    weights = Blocks(dtype, flat.data, flat.values.reshape(7, 40, 256))
    x, rng = normal(45, inputs, 256, seed=5), np.random.default_rng(6)
    ids = np.stack([rng.permutation([0, 1, 3, 4, 6])[:4] for _ in range(45)]).astype(np.int32)
    ids[:40, 0] = 5
    got = experts(weights, x, ids, threads)
    np.testing.assert_array_equal(experts(weights, x[:6], ids[:6], threads), got[:6])
    for expert in range(7):
        tokens, slots = np.nonzero(ids == expert)
        if tokens.size:
            size = len(weights.data) // 7
            data = weights.data[expert * size : (expert + 1) * size]
            own = Blocks(dtype, data, weights.values[expert])
            inputs_of = x[tokens, slots % inputs]
            (want,) = multiplied([own], inputs_of, deterministic=not dtype.is_quantized)
            np.testing.assert_array_equal(got[tokens, slots], want)


@NEEDS_FAMILY
def test_zeros_give_zeros():
    (got,) = multiplied([blocks(DType.Q4_K, normal(16, 256))], np.zeros((9, 256), np.float32))
    assert not got.any()


def test_other_operands_are_left_to_ggml():
    x = normal(9, 256)
    source = MemorySource(METADATA, {"w": normal(16, 256)})
    with new_backend(source, BackendParams(num_threads=1)) as backend, backend.new_context() as ctx:
        assert isinstance(backend, GGMLBackend)
        weight = backend.get("w")
        assert weight is not None
        with ctx.trace():
            activations = ctx.input().from_floats(x)
            heads = ctx.input().from_floats(normal(2, 16, 256))
            several = heads.mulmat(ctx.input().from_floats(normal(2, 9, 256)))
            assert products.fits(weight.mulmat(activations)) and not products.fits(several)
            assert not backend.weights.multiplied(activations.mulmat(activations))  # no weight
