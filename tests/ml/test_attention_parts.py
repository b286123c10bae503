"""Attention part by part is the attention of each part."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ggmodel.errors import TensorError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import Backend, BackendParams, DType, FlashAttention, Part, Tensor, new_backend
from tests.ggml_attention import ggml_attention

D, HEADS, KV_HEADS, CELLS = 8, 4, 2, 96
PARTS = {
    "one": (Part(0, 3, 32, 64),),
    "equal distances": tuple(Part(i, 1, 16 * i, 16) for i in range(4)),
    "equal distances, several rows": (Part(0, 2, 0, 32), Part(2, 2, 32, 32), Part(4, 2, 64, 32)),
    "other distances": (Part(0, 1, 64, 16), Part(1, 1, 0, 16), Part(2, 1, 32, 16)),
    "overlapping": (Part(0, 1, 0, 32), Part(1, 1, 16, 32), Part(2, 1, 16, 32)),
    "other sizes": (Part(0, 1, 0, 16), Part(1, 1, 16, 16), Part(2, 5, 32, 64), Part(7, 1, 8, 24)),
    "many rows": (Part(0, 70, 0, 64), Part(70, 1, 64, 32)),
}


@pytest.fixture(scope="module", params=["ggml", "reference"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    source = MemorySource({"general.architecture": "test", "test.block_count": 1}, {})
    params = BackendParams(num_threads=1, flash_attention=FlashAttention.ON)
    with ggml_attention():
        backend = new_backend(source, params, request.param)
    with backend:
        backend.load()
        yield backend


def attend(
    backend: Backend,
    parts: tuple[Part, ...],
    masks: list[np.ndarray],
    dtype: DType = DType.F32,
    sinks: bool = False,
) -> list[np.ndarray]:
    """The result with these parts [n, heads, d], then that of each part alone."""
    rng = np.random.default_rng(7)
    n = sum(part.rows for part in parts)
    with backend.new_context() as ctx, ctx.trace():
        q, k, v = (
            ctx.input().from_floats(rng.standard_normal((m, heads, D)).astype(np.float32))
            for m, heads in ((n, HEADS), (CELLS, KV_HEADS), (CELLS, KV_HEADS))
        )
        k, v = k.cast(dtype), v.cast(dtype)
        extra = ctx.input().from_floats(np.ones(HEADS, np.float32)) if sinks else None

        def of(x: Tensor, first: int, count: int) -> Tensor:
            return x.slice(2, first, first + count)

        def mask(values: np.ndarray) -> Tensor:
            return ctx.input().from_floats(values).cast(DType.F16)

        options = {"scale": 0.3, "cache_config_applied": True}
        flat = mask(np.concatenate([one.reshape(-1) for one in masks]))
        outs = [q.scaled_dot_product_attention(k, v, flat, extra, parts=parts, **options)]
        for part, own in zip(parts, masks, strict=True):
            cells = part.begin, part.cells
            rows = of(q, part.row, part.rows)
            outs.append(
                rows.scaled_dot_product_attention(
                    of(k, *cells), of(v, *cells), mask(own), extra, **options
                )
            )
        for out in outs:
            ctx.forward(out)
        ctx.compute(*outs)
        return [out.floats().reshape(-1, HEADS, D) for out in outs]


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=str)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_parts_are_as_each_alone(
    backend: Backend, parts: tuple[Part, ...], dtype: DType, sinks: bool
):
    rng = np.random.default_rng(1)
    masks = [np.where(rng.random((p.rows, p.cells)) < 0.5, 0, -np.inf) for p in parts]
    for one in masks:
        one[:, 0] = 0  # each row sees a cell
    whole, *alone = attend(backend, parts, [m.astype(np.float32) for m in masks], dtype, sinks)
    np.testing.assert_array_equal(whole, np.concatenate(alone))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((Part(0, 2, 0, 8), Part(1, 2, 8, 8)), "not all"),
        ((Part(0, 4, 90, 8),), "of 96 cells"),
        ((Part(0, 4, 0, 0),), "of 96 cells"),
    ],
)
def test_parts_that_do_not_fit(backend: Backend, parts: tuple[Part, ...], message: str):
    masks = [np.zeros((part.rows, part.cells), np.float32) for part in parts]
    with pytest.raises(TensorError, match=message):
        attend(backend, parts, masks)


def test_a_mask_of_another_size(backend: Backend):
    with pytest.raises(TensorError, match="one mask of 16 numbers"):
        attend(backend, (Part(0, 2, 0, 8),), [np.zeros((2, 9), np.float32)])


def test_no_parts_without_the_fused_op():
    source = MemorySource({"general.architecture": "test", "test.block_count": 1}, {})
    params = BackendParams(num_threads=1, flash_attention=FlashAttention.OFF)
    with new_backend(source, params) as backend:
        backend.load()
        assert not backend.cache_config.parts
        with pytest.raises(TensorError, match="fused"):
            attend(backend, PARTS["one"], [np.zeros((3, 64), np.float32)])
