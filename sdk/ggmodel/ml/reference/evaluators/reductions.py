"""Norms, softmax and sums along the last axis, which is dim 0."""

from __future__ import annotations

import numpy as np

from .table import computes, tiled


def _mean(x: np.ndarray) -> np.ndarray:
    return x.mean(-1, keepdims=True)


@computes("norm")
def norm(x: np.ndarray, eps: float) -> np.ndarray:
    centred = x - _mean(x)
    return centred / np.sqrt(_mean(centred**2) + eps)


@computes("rms_norm")
def rms_norm(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(_mean(x**2) + eps)


@computes("l2_norm")
def l2_norm(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), eps)


@computes("cumsum")
def cumsum(x: np.ndarray) -> np.ndarray:
    return x.cumsum(-1)


@computes("sum_rows")
def sum_rows(x: np.ndarray) -> np.ndarray:
    return x.sum(-1, keepdims=True)


@computes("mean")
def mean(x: np.ndarray) -> np.ndarray:
    return _mean(x)


@computes("softmax")
def softmax(
    x: np.ndarray, mask: np.ndarray | None, sinks: np.ndarray | None, scale: float = 1.0
) -> np.ndarray:
    """softmax(scale · x + mask), with an extra score a head for sinks.

    x [b, heads, n, m], mask [b', heads', ≥ n, m] repeated over both, sinks [1, 1, 1, heads].
    """
    scores = scale * x
    if mask is not None:
        scores = scores + tiled(mask[:, :, : x.shape[2]], x.shape)
    top = scores.max(-1, keepdims=True)
    sink = None if sinks is None else sinks.reshape(-1, 1, 1)
    if sink is not None:
        top = np.maximum(top, sink)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return weights / (total if sink is None else total + np.exp(sink - top))
