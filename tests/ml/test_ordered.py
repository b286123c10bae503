"""Sums of one order: the bits of a product or an attention do not depend on its company."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import TensorError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendParams, Context, DType, FlashAttention, Tensor, new_backend
from ggmodel.ml.ggml import attention
from ggmodel.ml.table import NUMBERS
from ggmodel.native import lib
from tests.ml.harness import METADATA, Blocks, blocks, nmse, normal

WIDTH, ROWS, EXPERTS = 512, 37, 5
# In numpy the order of sums is another; weights and columns in few bits are rounded otherwise.
EXACT, ROUNDED = 1e-11, 2e-3


def backend_of(tensors: dict[str, Any], threads: int) -> Backend:
    params = BackendParams(num_threads=threads, deterministic=True)
    stored = {
        name: (x.dtype, x.values.shape[::-1], x.data) if isinstance(x, Blocks) else x
        for name, x in tensors.items()
    }
    backend = new_backend(MemorySource(METADATA, stored), params)
    backend.load()
    return backend


@pytest.fixture(params=[attention.ANY, attention.AVX2, attention.AVX512])
def instructions(request: pytest.FixtureRequest) -> Iterator[int]:
    if lib.ggmodel_use_attention(request.param) != request.param:
        lib.ggmodel_use_attention(attention.instructions)
        pytest.skip("this processor lacks the instructions")
    yield request.param
    lib.ggmodel_use_attention(attention.instructions)


# products


def weights(dtype: DType, *shape: int) -> Any:
    values = normal(*shape, seed=1)
    return values if dtype is DType.F32 else blocks(dtype, values)


def multiplied(backend: Backend, x: np.ndarray, ids: np.ndarray | None = None) -> np.ndarray:
    with backend.new_context() as ctx, ctx.trace():
        w = backend.get("w")
        assert w is not None
        columns = ctx.input().from_floats(x)
        if ids is None:
            y = w.mulmat(columns)
        else:
            y = w.mulmat_id(
                columns, ctx.input().from_ints(ids.reshape(-1)).reshape(*ids.shape[::-1])
            )
        ctx.compute(y)
        return y.numpy().reshape(len(x), *(() if ids is None else ids.shape[1:]), -1).copy()


@pytest.mark.parametrize("dtype", sorted(NUMBERS, key=str), ids=str)
@pytest.mark.parametrize("rows", [ROWS, 300])
def test_a_column_gets_the_same_bits_in_any_company(dtype: DType, rows: int):
    w = weights(dtype, rows, WIDTH)
    x = normal(40, WIDTH, seed=2)
    got = list[np.ndarray]()
    for threads in (1, 2):
        with backend_of({"w": w}, threads) as backend:
            together = multiplied(backend, x)
            got.append(together)
            for begin, end in ((0, 1), (1, 2), (7, 12), (3, 40)):
                np.testing.assert_array_equal(
                    multiplied(backend, x[begin:end]), together[begin:end]
                )
    np.testing.assert_array_equal(got[0], got[1])
    values = w.values if isinstance(w, Blocks) else w
    assert nmse(got[0], x @ values.T) < (EXACT if dtype is DType.F32 else ROUNDED)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q8_0, DType.Q6_K, DType.IQ3_S])
@pytest.mark.parametrize("rows", [ROWS, 300])
def test_experts_give_a_token_the_same_bits_in_any_company(dtype: DType, rows: int):
    w = weights(dtype, EXPERTS, rows, WIDTH)
    x = normal(30, 1, WIDTH, seed=3)
    ids = np.random.default_rng(4).integers(0, EXPERTS, (30, 2)).astype(np.int32)
    got = list[np.ndarray]()
    for threads in (1, 2):
        with backend_of({"w": w}, threads) as backend:
            together = multiplied(backend, x, ids)
            got.append(together)
            for begin, end in ((0, 1), (4, 9), (29, 30)):
                alone = multiplied(backend, x[begin:end], ids[begin:end])
                np.testing.assert_array_equal(alone, together[begin:end])
    np.testing.assert_array_equal(got[0], got[1])
    values = w.values if isinstance(w, Blocks) else w
    want = np.einsum("tk,tumk->tum", x[:, 0], values[ids])
    assert nmse(got[0].reshape(want.shape), want) < (EXACT if dtype is DType.F32 else ROUNDED)


def test_a_product_of_activations_is_as_numpys():
    a, b = normal(2, 9, 40, seed=5), normal(4, 7, 40, seed=6)
    nothing = {"unused": np.zeros(32, np.float32)}
    with backend_of(nothing, 2) as backend, backend.new_context() as ctx, ctx.trace():
        x, y = (ctx.input().from_floats(v) for v in (a, b))
        out = x.mulmat(y)
        ctx.compute(out)
        assert nmse(out.numpy(), b @ a.repeat(2, 0).swapaxes(1, 2)) < EXACT


# attention

HEADS, KV_HEADS, D, DV, CELLS = 6, 2, 64, 32, 200
KINDS = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "alibi": {"max_bias": 8.0},
    "bias": {"biased": True},
    "all": {"softcap": 2.0, "sinks": True, "biased": True},
}


class Case:
    """A sequence of queries of positions, whose keys lie in shuffled cells beside others."""

    def __init__(
        self, backend: Backend, dtype: DType, d: int = D, dv: int = DV, window: int = 10**6
    ):
        rng = np.random.default_rng(1)
        self.backend, self.dtype, self.window = backend, dtype, window
        self.n = 150
        self.cells = rng.permutation(CELLS)[: self.n]
        self.q = normal(self.n, HEADS, d, seed=11)
        self.k, self.v = normal(CELLS, KV_HEADS, d, seed=12), normal(CELLS, KV_HEADS, dv, seed=13)
        self.sinks = normal(HEADS, seed=14)
        self.bias = normal(HEADS, self.n, CELLS, seed=15)

    def order(self, positions: np.ndarray, spare: int, before: int = 0) -> np.ndarray:
        """The order of some rows. Their list begins before all that they see, behind `before`
        cells of others."""
        base = max(0, int(positions.min()) - self.window + 1) // 3
        listed = self.cells[base : int(positions.max()) + 1]
        rows = [
            (before, len(listed) + spare, base, max(base, p - self.window + 1), p + 1)
            for p in positions.tolist()
        ]
        lists = [*range(before), *listed, *[-1] * spare]
        return np.array([*itertools.chain(*rows), *lists], np.int32)

    def _stored(self, ctx: Context, x: np.ndarray) -> Tensor:
        """x [cells, heads, d] as a tensor of the dtype."""
        given = ctx.input().from_floats(x)
        if not self.dtype.is_quantized:
            return given.cast(self.dtype)
        cells, heads, d = x.shape
        state = ctx.layer(0).zeros(self.dtype, d * heads, cells)
        ids = ctx.input().from_ints(np.arange(cells))
        ctx.forward(state.set_rows(given.reshape(d * heads, cells), ids))
        return state.view(0, d, self.dtype.row_size(d), heads, state.stride(1), cells)

    def compute(
        self,
        positions: np.ndarray,
        spare: int = 5,
        before: int = 0,
        shuffle: int | None = None,
        softcap: float = 0.0,
        sinks: bool = False,
        max_bias: float = 0.0,
        biased: bool = False,
    ) -> np.ndarray:
        """[rows, heads, dv]."""
        k, v, bias = self.k, self.v, self.bias[:, positions]
        cells, kept = self.cells, self.cells
        if shuffle is not None:  # the same keys in other cells
            at = np.random.default_rng(shuffle).permutation(CELLS)
            k, v = np.empty_like(k), np.empty_like(v)
            k[at], v[at] = self.k, self.v
            bias = np.empty_like(bias)
            bias[..., at] = self.bias[:, positions]
            cells = at[kept]
        self.cells = cells
        try:
            order = self.order(positions, spare, before)
        finally:
            self.cells = kept
        with self.backend.new_context() as ctx, ctx.trace():
            host = ctx.input()
            q = host.from_floats(np.ascontiguousarray(self.q[positions]))
            given: dict[str, Any] = {"softcap": softcap, "max_bias": max_bias, "scale": 0.3}
            keys, values = (self._stored(ctx, x) for x in (k, v))
            if sinks:
                given["sinks"] = host.from_floats(self.sinks)
            if biased:
                given["bias"] = host.from_floats(np.ascontiguousarray(bias))
            out = q.scaled_dot_product_attention(
                keys, values, host.from_ints(order), cache_config_applied=True, **given
            )
            ctx.compute(out)
            return out.floats().reshape(len(positions), HEADS, -1).copy()


@pytest.fixture(scope="module", params=["ggml 1", "ggml 2"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with backend_of({"unused": np.zeros(32, np.float32)}, int(request.param[-1])) as backend:
        yield backend


@pytest.fixture(scope="module")
def reference() -> Iterator[Backend]:
    source = MemorySource(METADATA, {"unused": np.zeros(32, np.float32)})
    params = BackendParams(flash_attention=FlashAttention.ON)
    with new_backend(source, params, "reference") as backend:
        backend.load()
        yield backend


DTYPES = [DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0]


SHORT = [("plain", 1), ("plain", 70), *((kind, 10**6) for kind in KINDS)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "window"), SHORT)
def test_attention_is_as_by_the_formula(
    backend: Backend, instructions: int, dtype: DType, kind: str, window: int
):
    del instructions
    case, rows = Case(backend, dtype, window=window), np.arange(0, 150, 7)
    got = case.compute(rows, **KINDS[kind])
    assert nmse(got, in_numpy(case, rows, **KINDS[kind])) < 1e-11


@pytest.mark.parametrize(("kind", "window"), SHORT)
def test_scores_that_are_no_numbers_reach_the_results_that_read_them(
    backend: Backend, instructions: int, kind: str, window: int
):
    """A query's reach its own head, a key's the heads of all that see it, at any place of a block;
    no other result changes."""
    del instructions
    rows = np.arange(150)
    case = Case(backend, DType.F32, window=window)
    want = case.compute(rows, **KINDS[kind])
    for p, head in ((4, 1), (100, 0)):
        case.q[p, head, p % D] = want[p, head] = np.nan
    for p in (45, 63, 64, 127):
        case.k[case.cells[p], 1, p % D] = np.nan
        want[p : p + window, HEADS // KV_HEADS :] = np.nan
    np.testing.assert_array_equal(case.compute(rows, **KINDS[kind]), want)
    for p in (4, 63, 70):
        got = case.compute(rows[p : p + 1], **KINDS[kind])
        np.testing.assert_array_equal(got, want[p : p + 1])


@pytest.mark.parametrize("kind", ["plain", "softcap", "sinks", "alibi"])
def test_the_numpy_backend_reads_orders(reference: Backend, kind: str):
    case, rows = Case(reference, DType.F32, window=70), np.arange(0, 150, 7)
    got = case.compute(rows, **KINDS[kind])
    assert nmse(got, in_numpy(case, rows, **KINDS[kind])) < 1e-11


def in_numpy(
    case: Case,
    rows: np.ndarray,
    softcap: float = 0.0,
    sinks: bool = False,
    max_bias: float = 0.0,
    biased: bool = False,
) -> np.ndarray:
    """Float64, by the formula."""
    slopes = [2 ** (-max_bias * i / 4) for i in range(1, 5)]
    slopes += [2 ** (-max_bias * i / 8) for i in (1, 3)]  # four heads, and two beyond
    k, v = (
        (x if case.dtype is DType.F32 else blocks(case.dtype, x).values).astype(np.float64)
        for x in (case.k, case.v)
    )
    out = np.empty((len(rows), HEADS, v.shape[2]))
    for i, p in enumerate(rows):
        seen = case.cells[max(0, p - case.window + 1) : p + 1]
        for h in range(HEADS):
            g = h // (HEADS // KV_HEADS)
            scores = 0.3 * (k[seen, g] @ case.q[p, h].astype(np.float64))
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            if biased:
                scores = scores + case.bias[h, p, seen]
            if max_bias:
                scores = scores - slopes[h] * np.arange(len(seen))[::-1]
            extra = np.exp(case.sinks[h] - scores.max()) if sinks else 0.0
            e = np.exp(scores - scores.max())
            out[i, h] = (e / (e.sum() + extra)) @ v[seen, g]
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "window"), SHORT)
def test_a_row_gets_the_same_bits_in_any_company(
    backend: Backend, dtype: DType, kind: str, window: int
):
    case, given = Case(backend, dtype, window=window), KINDS[kind]
    together = case.compute(np.arange(150), **given)
    for begin, end in ((0, 1), (63, 64), (64, 65), (100, 103), (40, 149)):
        rows = np.arange(begin, end)
        for more in ({}, {"spare": 90, "before": 7}, {"shuffle": 3}):
            got = case.compute(rows, **more, **given)
            np.testing.assert_array_equal(got, together[begin:end])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q8_0], ids=str)
@pytest.mark.parametrize(("d", "dv"), [(64, 32), (96, 96), (32, 128)])
def test_all_instructions_and_threads_give_the_same_bits(kind: str, dtype: DType, d: int, dv: int):
    results = []
    for threads, chosen in itertools.product(
        (1, 2), (attention.ANY, attention.AVX2, attention.AVX512)
    ):
        if lib.ggmodel_use_attention(chosen) != chosen:
            continue
        with backend_of({"unused": np.zeros(32, np.float32)}, threads) as backend:
            case = Case(backend, dtype, d, dv, window=80)
            results.append(case.compute(np.arange(30, 150), **KINDS[kind]))
    lib.ggmodel_use_attention(attention.instructions)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_masks_and_no_mask(backend: Backend, instructions: int):
    del instructions
    q, k, v = normal(5, 4, 80), normal(90, 2, 80, seed=1), normal(90, 2, 80, seed=2)
    mask = np.where(np.random.default_rng(3).random((5, 90)) < 0.5, 0, -np.inf).astype(np.float32)
    for given in (None, mask):
        with backend.new_context() as ctx, ctx.trace():
            x, y, z = (ctx.input().from_floats(a) for a in (q, k, v))
            m = None if given is None else ctx.input().from_floats(given)
            out = x.scaled_dot_product_attention(y, z, m, scale=0.2)
            ctx.compute(out)
            got = out.floats().reshape(5, 4, 80)
        scores = 0.2 * np.einsum("nhd,mhd->hnm", q, k.repeat(2, 1)).astype(np.float64)
        scores = scores if given is None else scores + given
        e = np.exp(scores - scores.max(-1, keepdims=True))
        want = np.einsum("hnm,mhd->nhd", e / e.sum(-1, keepdims=True), v.repeat(2, 1))
        assert nmse(got, want) < 1e-11


def test_masked_keys_may_be_no_numbers(backend: Backend, instructions: int):
    """Even all keys of a block may be."""
    del instructions
    q, k, v = normal(5, 4, 80), normal(140, 2, 80, seed=1), normal(140, 2, 80, seed=2)
    mask = np.zeros((5, 140), np.float32)
    mask[:, :66] = -np.inf
    results = []
    for value in (0, np.nan):
        k[::13] = value
        mask[:, ::13] = -np.inf
        with backend.new_context() as ctx, ctx.trace():
            x, y, z, m = (ctx.input().from_floats(a) for a in (q, k, v, mask))
            out = x.scaled_dot_product_attention(y, z, m, scale=0.2)
            ctx.compute(out)
            results.append(out.floats().copy())
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[1], results[0])


def test_a_row_that_sees_nothing_gets_zeros(backend: Backend):
    with backend.new_context() as ctx, ctx.trace():
        x, y, z = (ctx.input().from_floats(normal(n, 2, 32)) for n in (1, 8, 8))
        order = ctx.input().from_ints(np.array([0, 1, 0, 0, 0, -1], np.int32))
        out = x.scaled_dot_product_attention(y, z, order, scale=1.0, cache_config_applied=True)
        ctx.compute(out)
        assert not out.floats().any()


@pytest.mark.parametrize(("numbers", "message"), [(5, "over 5 numbers"), (0, "over 5 numbers")])
def test_an_order_has_lists(backend: Backend, numbers: int, message: str):
    del numbers
    with backend.new_context() as ctx, ctx.trace():
        x, y, z = (ctx.input().from_floats(normal(n, 2, 32)) for n in (1, 8, 8))
        order = ctx.input().from_ints(np.zeros(5, np.int32))
        with pytest.raises(TensorError, match=message):
            x.scaled_dot_product_attention(y, z, order, scale=1.0, cache_config_applied=True)


def test_no_order_without_fused_attention():
    params = BackendParams(deterministic=True, flash_attention=FlashAttention.OFF)
    with pytest.raises(Unsupported, match="one fused op"):
        new_backend(MemorySource(METADATA, {}), params)
