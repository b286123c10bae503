"""Every op of the table against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel.errors import TensorError
from ggmodel.ml import OPS, Backend, Context, DType
from ggmodel.ml.ggml.emitters import EMITTERS
from ggmodel.ml.table import NUMBERS
from tests.ml.cases import BLOCKS, CASES, SAME, Case
from tests.ml.harness import backend_of, blocks, exact, nmse, normal, run, tensor


def test_every_op_has_an_emitter_and_every_emitter_an_op():
    assert set(EMITTERS) == set(OPS)


def test_every_op_has_a_case():
    assert {case.op for case in CASES} == set(OPS)


def test_no_two_cases_have_the_same_name():
    names = [str(case) for case in CASES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_op_equals_numpy(case: Case, backend: Backend, flash_backend: Backend):
    chosen = flash_backend if case.op == "flash_attention" else backend
    got, out = run(chosen, case.build, *case.values)
    want = np.asarray(case.want(*map(exact, case.values)))
    assert got.shape == out.shape[::-1]
    assert got.reshape(want.shape).shape == want.shape
    assert [n for n in got.shape if n > 1] == [n for n in want.shape if n > 1]
    if case.bound == SAME:
        np.testing.assert_array_equal(got.reshape(want.shape), want)
    else:
        assert np.isfinite(got).all()
        assert nmse(got.reshape(want.shape), want) < case.bound


@pytest.mark.parametrize("op", OPS)
def test_the_cases_of_an_op_record_it(op: str, backend: Backend, flash_backend: Backend):
    chosen = flash_backend if op == "flash_attention" else backend
    for case in (c for c in CASES if c.op == op):
        with chosen.new_context() as ctx, ctx.trace():
            inputs = [tensor(ctx, v) for v in case.values]
            ctx.forward(case.build(*inputs) if inputs else case.build(ctx))
            if op in {node.op.name for node in ctx.graph.schedule if node.op}:
                return
    pytest.fail("no case of this op has it in its graph")


DTYPES = sorted(NUMBERS - {DType.F32, DType.F16, DType.BF16})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_block_format_multiplies_and_is_looked_up(dtype: DType, backend: Backend):
    width = max(256, dtype.block_size)
    table = blocks(dtype, normal(9, width))
    x = normal(3, width, seed=1)
    got, _ = run(backend, lambda w, x: w.mulmat(x), table, x)
    error = (got - x.astype(np.float64) @ table.values.T) ** 2
    # Not against the result, where noise in a format's bits may cancel by chance.
    power = (x**2).sum(1)[:, None] * (table.values**2).sum(1) / width
    assert (error / power).mean() < BLOCKS
    ids = np.array([8, 0, 3], np.int32)
    got, _ = run(backend, lambda t, i: t.rows(i), table, ids)
    np.testing.assert_array_equal(got, table.values[ids].astype(np.float32))
    got, _ = run(backend, lambda t: t.cast(DType.F32), table)
    np.testing.assert_array_equal(got, table.values.astype(np.float32))


def test_bfloat16_multiplies_and_is_looked_up(backend: Backend):
    table = blocks(DType.BF16, normal(5, 64))
    x = normal(3, 64, seed=1)
    got, _ = run(backend, lambda w, x: w.mulmat(x), table, x)
    # Activations are rounded to 8 bits: by at most 2⁻⁸, which is 1.5e-5 squared.
    assert nmse(got, x.astype(np.float64) @ table.values.T) < 1.6e-5
    got, _ = run(backend, lambda t, i: t.rows(i), table, np.array([4, 0], np.int32))
    np.testing.assert_array_equal(got, table.values[[4, 0]].astype(np.float32))


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(0, 1, 0.1), (0, 0.3, 0.1), (0, 1, 1 / 3), (-2, 2, 0.7), (1, 0, -0.3), (0, 100, 9.99)],
)
def test_arange_is_half_open(ctx: Context, start: float, stop: float, step: float):
    t = ctx.arange(start, stop, step)
    ctx.forward(t).compute(t)
    want = np.arange(start, stop, step)
    assert t.shape == want.shape
    np.testing.assert_allclose(t.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES[::23], ids=str)
def test_threads_change_nothing(case: Case, backend: Backend):
    with backend_of(threads=2) as two:
        assert run(two, case.build, *case.values)[0].tobytes() == (
            run(backend, case.build, *case.values)[0].tobytes()
        )


def test_attention_is_one_op_where_the_backend_says_so(backend: Backend, flash_backend: Backend):
    for chosen, fused in ((backend, False), (flash_backend, True)):
        with chosen.new_context() as ctx, ctx.trace():
            q, k, v = (ctx.input().from_floats(normal(2, 3, 8, seed=n)) for n in range(3))
            out = q.scaled_dot_product_attention(k, v, scale=1.0)
            ctx.forward(out)
            ops = {node.op.name for node in ctx.graph.schedule if node.op is not None}
        assert ("flash_attention" in ops) == fused


def test_a_convolution_without_places_is_a_plain_one(ctx: Context):
    kernel, image = normal(2, 3, 2, 2), normal(1, 3, 5, 6)
    out = tensor(ctx, kernel).conv_2d(tensor(ctx, image))
    assert out.shape == (5, 4, 2)
    volume = tensor(ctx, normal(3, 2, 2, 2)).conv_3d(tensor(ctx, normal(3, 4, 5, 6)), 3)
    assert volume.shape == (5, 4, 3)


@pytest.mark.parametrize("channels", [0, -1, 2])
def test_channels_divide_kernel_and_image(ctx: Context, channels: int):
    kernel, image = tensor(ctx, normal(3, 2, 2, 2)), tensor(ctx, normal(3, 4, 5, 6))
    with pytest.raises(TensorError, match="channels do not divide dims 3: 3 of the kernel, 3 of x"):
        kernel.conv_3d(image, channels)


def test_a_pool_may_be_larger_than_the_image_without_its_padding(ctx: Context):
    assert tensor(ctx, normal(1, 4, 4)).avg_pool_2d(3, 1, 1).shape == (4, 4)
    with pytest.raises(TensorError, match="a pool of 7 does not fit"):
        tensor(ctx, normal(1, 4, 4)).avg_pool_2d(7, 1, 1)


def test_a_convolution_without_channels_is_refused(backend: Backend):
    with backend.new_context() as ctx, ctx.trace():
        kernel, image = (tensor(ctx, np.zeros((1, 0, 6, 2), np.float32)) for _ in range(2))
        with pytest.raises(TensorError, match="conv_2d: ggml refused it"):
            ctx.compute(kernel.conv_2d(image, p0=6, p1=8))
