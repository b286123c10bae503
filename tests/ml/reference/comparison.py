"""A recipe computed by both backends, and how far the results may be apart."""

from __future__ import annotations

import numpy as np

from ggmodel.ml import Backend, DType, Tensor
from ggmodel.ml.tensor import to_float32
from tests.ml.harness import tensor
from tests.ml.reference.recipes import Recipe

Computed = tuple[list[np.ndarray], set[DType]]

# Squared errors relative to the squared result.
#
# float32: 2⁻²⁴ a rounding, which is 4e-15 squared, a hundred times over in sums and polynomials,
# and in the same direction. Products get activations that ggml's rounding preserves, so that this
# holds for weights of every format.
SINGLE = 1e-11
# A float32 result may lie on either side of the middle between two halves: 2⁻¹⁰ of it, 2⁻⁷ for
# BF16; and where values are F16 attention sums them up in F16.
BOUNDS = {DType.F16: 1e-6, DType.BF16: 6e-5}
# Looked up in a table of F16, whose arguments are halves too.
TABLES: dict[str, float] = dict.fromkeys(
    ("gelu", "quick_gelu", "gated_gelu", "gated_quick_gelu"), 1e-6
)
# Angles are products of float32 that reach 50: 50 · 2⁻²⁴ off, and a few roundings more.
ROPE = 1e-9
# A value in the middle of two steps may be rounded up or down: a step of max / 127, now and then.
STEPS = 1e-5


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Σ(got − want)² / Σwant², or, where sums cancel, relative to as many values of size 1."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    assert np.isfinite(got).all() and np.isfinite(want).all()
    return float(((got - want) ** 2).sum() / max((want**2).sum(), want.size))


def compute(backend: Backend, recipe: Recipe, op: str) -> Computed:
    """The recipe's results, and the dtypes of all that was computed."""
    with backend.new_context() as ctx, ctx.trace():
        made = recipe.build(*(tensor(ctx, v) for v in recipe.values) if recipe.values else (ctx,))
        outputs = (made,) if isinstance(made, Tensor) else made
        ctx.forward(*outputs)
        assert op in {node.op.name for node in ctx.graph.schedule if node.op}
        ctx.compute(*outputs)
        values = [to_float32(t.raw(), t.dtype, t.ne) for t in outputs]
        return values, {node.dtype for node in ctx.graph.schedule}


def compare(op: str, recipe: Recipe, results: Computed, expected: Computed) -> None:
    """Fails unless ggml's results are as near to the reference's as the op can be."""
    dtypes = results[1]
    bound = max(SINGLE, *(BOUNDS.get(d, 0) for d in dtypes), TABLES.get(op, 0))
    if op == "rope":
        bound = max(bound, ROPE)
    if any(d.is_quantized for d in dtypes):
        bound = max(bound, STEPS)
    for got, want in zip(results[0], expected[0], strict=True):
        assert got.shape == want.shape
        if recipe.exact:
            np.testing.assert_array_equal(got, want)
        else:
            assert error(got, want) < bound
