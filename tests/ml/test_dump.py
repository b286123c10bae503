"""Dumps against numpy's output, and cases that numpy lacks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.errors import GraphError, TensorError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, Context, DType, dump, new_backend

NOISE = np.random.default_rng(0).standard_normal((3, 5, 64)).astype(np.float32)
DTYPES = [DType.Q8_0, DType.Q4_0, DType.BF16]


def encoded(dtype: DType) -> np.ndarray:
    return quantize(NOISE, GGMLQuantizationType(dtype.value))


@pytest.fixture(scope="module", params=["ggml", "reference"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    tensors: dict[str, Any] = {
        dtype.name: (dtype, (64, 5, 3), encoded(dtype).tobytes()) for dtype in DTYPES
    }
    source = MemorySource({"general.architecture": "test", "test.block_count": 1}, tensors)
    with new_backend(source, name=request.param) as backend:
        backend.load()
        yield backend


@pytest.fixture
def ctx(backend: Backend) -> Iterator[Context]:
    with backend.new_context() as ctx, ctx.trace():
        yield ctx


def printed(values: np.ndarray, precision: int = 4, threshold: int = 1000, edges: int = 3) -> str:
    """numpy's output with fixed decimals, for numbers neither too large nor too small for it."""
    return np.array2string(
        # Numpy prints only the digits that distinguish a short float from others.
        values.astype(np.float64) if values.dtype.kind == "f" else values,
        precision=precision,
        threshold=threshold,
        edgeitems=edges,
        separator=", ",
        max_line_width=1 << 30,
        suppress_small=True,
        floatmode="fixed",
    )


KINDS = {"<f4": DType.F32, "<f2": DType.F16, "<i4": DType.I32, "<i8": DType.I64}
shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    shape=shapes,
    dtype=st.sampled_from([np.float32, np.float16, np.int32, np.int64]),
    precision=st.integers(0, 6),
    threshold=st.integers(0, 60) | st.just(1000),
    edges=st.integers(1, 4),
    seed=st.integers(0, 1 << 20),
)
def test_as_numpy_prints(
    backend: Backend,
    shape: list[int],
    dtype: type,
    precision: int,
    threshold: int,
    edges: int,
    seed: int,
):
    # A shape has no trailing dims of one element; numpy's shape is reversed.
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    values = (np.random.default_rng(seed).standard_normal(shape) * 300).astype(dtype)
    kind = KINDS[values.dtype.str]
    with backend.new_context() as ctx:
        t = ctx.input().from_bytes(kind, values.tobytes(), *shape[::-1])
        got = dump(ctx, t, precision=precision, threshold=threshold, edge_items=edges)
    want = printed(values, precision, threshold, edges)
    if precision == 0:  # "3." with numpy
        want = re.sub(r"(?<=\d)\.(?=[,\]])", "", want)
    assert got == want


def test_layout(ctx: Context):
    t = ctx.input().from_floats(np.arange(12, dtype=np.float32).reshape(2, 2, 3) - 2.5)
    assert dump(t, precision=1) == (
        "[[[-2.5, -1.5, -0.5],\n"
        "  [ 0.5,  1.5,  2.5]],\n"
        "\n"
        " [[ 3.5,  4.5,  5.5],\n"
        "  [ 6.5,  7.5,  8.5]]]"
    )


def test_defaults(ctx: Context):
    small = ctx.input().from_floats(np.full(1000, math.pi))
    assert dump(small) == f"[{', '.join(['3.1416'] * 1000)}]"
    large = ctx.input().from_ints(np.arange(1001))
    assert dump(large) == "[   0,    1,    2, ...,  998,  999, 1000]"


def test_values_between_the_edges_take_no_room(ctx: Context):
    t = ctx.input().from_ints([1, 2, 100000, 3, 4])
    assert dump(t, threshold=0, edge_items=1) == "[1, ..., 4]"


def test_numbers_without_end(ctx: Context):
    values = [math.nan, math.inf, -math.inf, -0.0, 1e9, 1e-9]
    assert dump(ctx.input().from_floats(values), precision=1) == (
        "[         nan,          inf,         -inf,         -0.0, 1000000000.0,          0.0]"
    )


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I32])
def test_no_elements(ctx: Context, dtype: DType, shape: tuple[int, ...]):
    assert dump(ctx.input().empty(dtype, *shape)) == "[]"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threshold", [10, 1000])
def test_weights_are_dequantised(backend: Backend, dtype: DType, threshold: int):
    values = dequantize(encoded(dtype), GGMLQuantizationType(dtype.value))
    weight = backend.get(dtype.name)
    assert weight is not None
    assert dump(weight, threshold=threshold) == printed(values, threshold=threshold)


def test_only_the_edges_are_dequantised(monkeypatch: pytest.MonkeyPatch):
    shape = (32, 1000, 1000)  # 34 MB as Q8_0, 128 MB as floats
    source = MemorySource(
        {"general.architecture": "test", "test.block_count": 1},
        {"w": (DType.Q8_0, shape, bytes(34 * 1000 * 1000))},
    )
    decoded: list[int] = []

    def counted(rows: np.ndarray, kind: Any) -> np.ndarray:
        decoded.append(rows.size)
        return dequantize(rows, kind)

    monkeypatch.setattr("gguf.quants.dequantize", counted)
    with new_backend(source, name="reference") as backend:
        weight = backend.get("w")
        assert weight is not None
        assert dump(weight).startswith("[[[0.0000, 0.0000, 0.0000, ..., 0.0000")
    assert sum(decoded) == 34 * 7 * 7


def test_what_has_no_value_is_computed(ctx: Context):
    x = ctx.input().from_floats([1.0, 2.0, 3.0])
    doubled = x.scale(2.0)
    assert dump(ctx, doubled, precision=0) == "[2, 4, 6]"
    assert dump(doubled.neg(), precision=0) == "[-2, -4, -6]"
    assert doubled.floats().tolist() == [2, 4, 6]


def test_what_has_a_value_is_not_computed_again(ctx: Context):
    x = ctx.input().from_floats([1.0, 2.0])
    y = x.neg()
    ctx.forward(y).compute(y)
    x.from_floats([5.0, 6.0])
    assert dump(ctx, y, precision=0) == "[-1, -2]"


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_blocks(backend: Backend, ctx: Context, dtype: DType):
    values = dequantize(encoded(dtype), GGMLQuantizationType(dtype.value))
    weight = backend.get(dtype.name)
    assert weight is not None
    assert dump(weight.permute(0, 2, 1, 3)) == printed(values.transpose(1, 0, 2))
    assert dump(ctx, weight.slice(1, 0, 5, 2)) == printed(values[:, ::2])


def test_a_cache(ctx: Context):
    cache = ctx.layer(0).zeros(DType.F32, 2, 2)
    written = ctx.input().from_floats([[1.0, 2.0]]).copy(cache.view(8, 2))
    ctx.compute(written)
    assert dump(cache, precision=0) == "[[0, 0],\n [1, 2]]"


def test_what_cannot_be_dumped(backend: Backend, ctx: Context):
    with pytest.raises(GraphError, match="feed"):
        dump(ctx, ctx.feed(lambda step: [1], DType.I32, 1))
    x = ctx.input().from_floats([1.0])
    for wrong in ({"precision": -1}, {"edge_items": 0}):
        with pytest.raises(TensorError, match="or more"):
            dump(x, **wrong)
    with backend.new_context() as other, pytest.raises(GraphError, match="another graph"):
        dump(other, x.neg())
    y = x.neg()
    ctx.close()
    with pytest.raises(GraphError, match="context is closed"):
        dump(y)
