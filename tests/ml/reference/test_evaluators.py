"""Every evaluator against an independent computation in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel.errors import ComputeError, TensorError
from ggmodel.ml import OPS, Backend, DType
from ggmodel.ml.reference.evaluators import EVALUATORS
from ggmodel.ml.table import NUMBERS
from tests.ml.cases import CASES, SAME, Case
from tests.ml.harness import blocks, exact, nmse, normal, tensor
from tests.ml.reference.conftest import run

# All results, intermediate ones too, are rounded to float32: 2⁻²⁴, 4e-15 squared.
SINGLE = 1e-13
# ggml and the encoders of the `gguf` package may round the middle of two steps differently, and
# a step is max / 127.
STEPS = 1e-5
HALVES = frozenset({DType.F16, DType.BF16})


def test_every_op_has_an_evaluator_and_every_evaluator_an_op():
    assert set(EVALUATORS) == set(OPS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_op_equals_numpy(case: Case, reference: Backend, flash_reference: Backend):
    backend = flash_reference if case.op == "flash_attention" else reference
    got, graph = run(backend, case.build, *case.values)
    want = np.asarray(case.want(*map(exact, case.values)))
    assert [n for n in got.shape if n > 1] == [n for n in want.shape if n > 1]
    got = got.reshape(want.shape)
    rounded = {node.dtype for node in graph.schedule}
    if any(dtype.is_quantized for dtype in rounded):
        assert nmse(got, want) < STEPS
    elif case.bound == SAME:
        np.testing.assert_array_equal(got, want)
    else:
        assert nmse(got, want) < (case.bound if rounded & HALVES else SINGLE)


@pytest.mark.parametrize("dtype", sorted(t for t in NUMBERS if t.is_quantized), ids=str)
def test_block_formats(dtype: DType, reference: Backend):
    """Products read decoded values; formats that numpy cannot decode are errors."""
    width = max(256, dtype.block_size)
    table, x = blocks(dtype, normal(9, width)), normal(3, width, seed=1)
    if dtype in (DType.Q1_0, DType.Q2_0):
        with pytest.raises(TensorError, match=f"cannot read {dtype.name}"):
            run(reference, lambda w, x: w.mulmat(x), table, x)
        return
    got, _ = run(reference, lambda w, x: w.mulmat(x), table, x)
    assert nmse(got, x.astype(np.float64) @ table.values.T) < SINGLE
    ids = np.array([8, 0, 3], np.int32)
    got, _ = run(reference, lambda t, i: t.rows(i), table, ids)
    np.testing.assert_array_equal(got, table.values[ids])


def test_formats_without_an_encoder_are_refused(reference: Backend):
    with reference.new_context() as ctx, ctx.trace():
        dst = tensor(ctx, blocks(DType.Q4_K, normal(2, 256))).duplicate()
        row = dst.set_rows(tensor(ctx, normal(1, 256)), tensor(ctx, np.array([0], np.int32)))
        with pytest.raises(TensorError, match="cannot write Q4_K"):
            ctx.forward(row).compute(row)


def test_bfloat16_rounds_to_nearest_even(reference: Backend):
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8 + 2**-20), np.inf], np.float32)
    got, _ = run(reference, lambda t: t.cast(DType.BF16), x)
    np.testing.assert_array_equal(got, np.array([1, 1 + 2**-6, -(1 + 2**-7), np.inf], np.float32))


def test_a_query_that_sees_nothing_gets_zeros(flash_reference: Backend):
    mask = np.zeros((3, 5), np.float16)
    mask[1] = -np.inf
    values = (normal(3, 2, 8), normal(5, 2, 8, seed=1), normal(5, 2, 8, seed=2), mask)

    def build(q, k, v, mask):
        return q.scaled_dot_product_attention(k, v, mask, scale=0.3)

    got, _ = run(flash_reference, build, *values)
    assert not got[1].any() and np.isfinite(got).all() and got[[0, 2]].all()


def test_computed_indices_are_checked_when_they_are_used(reference: Backend):
    with reference.new_context() as ctx, ctx.trace():
        order = tensor(ctx, normal(8)).argsort()
        table = tensor(ctx, normal(8, 3))
        out = table.rows(order)
        ctx.forward(out)
        executable = reference.compile(ctx.graph, (out,))
        table.ne = (3, 4, 1, 1)  # as if a rule had let it pass
        with pytest.raises(ComputeError, match=r"rows: an index is .* not 0 to 3"):
            executable.run()
