"""Matrix products, including expert-indexed ones. Unlike in ggml, activations are not rounded to
the weight's format."""

from __future__ import annotations

import numpy as np

from .table import computes, in_range


@computes("mulmat")
def mulmat(w: np.ndarray, x: np.ndarray, full_precision: bool = False) -> np.ndarray:
    """w [b3, b2, m, k], x [c3, c2, n, k] → [c3, c2, n, m]; each matrix of w serves c2/b2
    neighbours of x, and c3/b3 of those groups."""
    b3, b2, m, k = w.shape
    c3, c2, n, _ = x.shape
    if not b3 * b2:
        return np.zeros((c3, c2, n, m))
    grouped = x.reshape(b3, c3 // b3, b2, c2 // b2, n, k)
    product = grouped @ w.swapaxes(2, 3)[:, None, :, None]
    return product.reshape(c3, c2, n, m)


@computes("mulmat_id")
def mulmat_id(w: np.ndarray, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """w [1, experts, m, k], x [1, n, 1 or used, k], ids [1, 1, n, used] → [1, n, used, m]."""
    weights, inputs = w[0], x[0]
    choice = in_range(ids[0, 0], len(weights))
    out = np.zeros((*choice.shape, weights.shape[1]))
    for expert in np.unique(choice):
        token, place = np.nonzero(choice == expert)
        out[token, place] = inputs[token, place % inputs.shape[1]] @ weights[expert].T
    return out[None]


@computes("add_id")
def add_id(x: np.ndarray, bias: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """x [1, n, used, m], bias [1, 1, experts, m], ids [1, 1, n, used]."""
    return x + bias[0, 0][in_range(ids[0, 0], bias.shape[2])]
