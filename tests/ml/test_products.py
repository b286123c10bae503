"""Products by our own kernels: ggml's results, float64's where it can be, the same bits in any
company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from ggmodel.gguf_file import MemorySource
from ggmodel.ml import BackendParams, DType, Tensor, new_backend
from ggmodel.ml.ggml import measurements, products
from ggmodel.ml.ggml.ggml_backend import GGMLBackend
from ggmodel.native import lib
from tests.ml.harness import METADATA, Blocks, blocks, nmse, normal

BEST = lib.ggmodel_use_products(products.TILES)
SERVED = [dtype for dtype in DType if products.serves(dtype)]
NEEDS_VNNI = pytest.mark.skipif(not BEST, reason="this processor has no AVX-512 with VNNI")
INSTRUCTIONS = range(products.VNNI, BEST + 1)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Chooses our kernels, whatever is faster; or ggml's."""

    def choose(own: bool) -> None:
        monkeypatch.setattr(measurements, "own_is_faster", lambda dtype: (own,) * 6)
        monkeypatch.setattr(products, "LEAST", 1)

    choose(True)
    yield choose
    lib.ggmodel_use_products(products.TILES)


def multiplied(
    tables: Sequence[Blocks], x: np.ndarray, threads: int = 1, own: bool = True
) -> list[np.ndarray]:
    """The products of weights and the same activations, in one graph."""
    weights = {
        str(i): (table.dtype, table.values.shape[::-1], table.data)
        for i, table in enumerate(tables)
    }
    source = MemorySource(METADATA, weights)
    params = BackendParams(num_threads=threads)
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
        assert [backend.weights.multiplied(y) for y in results] == [own] * len(results)
        ctx.compute(*results)
        return [y.numpy().reshape(*x.shape[:-1], -1) for y in results]


@NEEDS_VNNI
def test_types_with_a_kernel():
    names = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4"
    assert {dtype.name for dtype in SERVED} == set(names.split())


@NEEDS_VNNI
@pytest.mark.parametrize("dtype", SERVED, ids=lambda dtype: dtype.name)
def test_results_are_those_of_ggml(dtype: DType, always: Callable[[bool], None]):
    """Activations are rounded alike: what differs is the order of float32's sums, and the repacked
    layout's scales of Q8_K."""
    table, x = blocks(dtype, normal(70, 512)), normal(40, 512, seed=1)
    x[3:5, 256:] = 0
    (ours,) = multiplied([table], x)
    always(False)
    (theirs,) = multiplied([table], x, own=False)
    assert nmse(ours, theirs) < 1e-10


@NEEDS_VNNI
@pytest.mark.parametrize("dtype", SERVED, ids=lambda dtype: dtype.name)
def test_whole_numbers_are_exact(dtype: DType):
    """Activations that eight bits hold leave float32's rounding alone."""
    table = blocks(dtype, normal(33, 256))
    x = np.random.default_rng(0).integers(-127, 128, (19, 256)).astype(np.float32)
    x[:, ::32] = 127
    (got,) = multiplied([table], x)
    assert nmse(got, x.astype(np.float64) @ table.values.T) < 1e-12


@NEEDS_VNNI
@pytest.mark.parametrize("dtype", SERVED, ids=lambda dtype: dtype.name)
def test_bits_do_not_depend_on_columns_threads_and_instructions(dtype: DType):
    table, x = blocks(dtype, normal(100, 256)), normal(37, 256, seed=2)
    (whole,) = multiplied([table], x)
    for instructions in INSTRUCTIONS:
        lib.ggmodel_use_products(instructions)
        slices = ((0, 1, 1), (3, 5, 2), (2, 10, 1), (5, 14, 3), (0, 16, 2), (1, 37, 3))
        for first, last, threads in slices:
            (part,) = multiplied([table], x[first:last], threads)
            np.testing.assert_array_equal(part, whole[first:last])


@NEEDS_VNNI
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("rows", [1, 15, 16, 97, 200])
@pytest.mark.parametrize("width", [32, 160, 2016, 2048, 4128])
def test_shapes(rows: int, width: int, instructions: int):
    lib.ggmodel_use_products(instructions)
    x = normal(3, 4, width, seed=3)
    for dtype in (DType.Q8_0, DType.Q5_1):
        table = blocks(dtype, normal(rows, width))
        (got,) = multiplied([table], x, threads=2)
        assert nmse(got, x.astype(np.float64) @ table.values.T) < 1e-4
        (few,) = multiplied([table], x[1:2], threads=2)
        np.testing.assert_array_equal(few, got[1:2])


@NEEDS_VNNI
def test_products_of_the_same_activations_share_their_quantised_form():
    tables = [blocks(t, normal(48, 256, seed=i)) for i, t in enumerate((DType.Q4_K, DType.Q6_K))]
    x = normal(20, 256, seed=4)
    together = multiplied(tables, x)
    for table, got in zip(tables, together, strict=True):
        np.testing.assert_array_equal(got, multiplied([table], x)[0])


def experts(table: Blocks, x: np.ndarray, ids: np.ndarray, threads: int = 1) -> np.ndarray:
    """Each token's products with its experts, of weights [experts, m, k]: [tokens, used, m]."""
    source = MemorySource(METADATA, {"w": (table.dtype, table.values.shape[::-1], table.data)})
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


@NEEDS_VNNI
@pytest.mark.parametrize("inputs", [1, 2, 4])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.Q6_K, DType.MXFP4], ids=lambda t: t.name)
def test_experts_are_products_of_their_own_columns(dtype: DType, threads: int, inputs: int):
    """Expert 5 has most columns, 2 none; an input is read by 4, 2 or 1 of the experts used."""
    table = blocks(dtype, normal(7, 40, 256))
    x, rng = normal(45, inputs, 256, seed=5), np.random.default_rng(6)
    ids = np.stack([rng.permutation([0, 1, 3, 4, 6])[:4] for _ in range(45)]).astype(np.int32)
    ids[:40, 0] = 5
    got = experts(table, x, ids, threads)
    np.testing.assert_array_equal(experts(table, x[:6], ids[:6], threads), got[:6])
    for expert in range(7):
        tokens, slots = np.nonzero(ids == expert)
        if tokens.size:
            size = len(table.data) // 7
            data = table.data[expert * size : (expert + 1) * size]
            own = Blocks(dtype, data, table.values[expert])
            (want,) = multiplied([own], x[tokens, slots % inputs])
            np.testing.assert_array_equal(got[tokens, slots], want)


@NEEDS_VNNI
def test_zeros_give_zeros():
    (got,) = multiplied([blocks(DType.Q4_K, normal(16, 256))], np.zeros((9, 256), np.float32))
    assert not got.any()


def test_other_types_and_operands_are_left_to_ggml(always: Callable[[bool], None]):
    table = normal(16, 256)
    x = normal(9, 256)
    source = MemorySource(METADATA, {"w": table})
    with new_backend(source, BackendParams(num_threads=1)) as backend, backend.new_context() as ctx:
        assert isinstance(backend, GGMLBackend)
        weight = backend.get("w")
        assert weight is not None and not products.serves(DType.F32)
        with ctx.trace():
            activations = ctx.input().from_floats(x)
            heads = ctx.input().from_floats(normal(2, 16, 256))
            several = heads.mulmat(ctx.input().from_floats(normal(2, 9, 256)))
            assert products.fits(weight.mulmat(activations)) and not products.fits(several)
            assert not backend.weights.multiplied(activations.mulmat(activations))  # no weight
