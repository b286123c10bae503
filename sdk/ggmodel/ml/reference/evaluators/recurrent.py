"""State-space models, delta rules, triangular systems."""

from __future__ import annotations

import numpy as np

from .table import computes, in_range


@computes("ssm_conv")
def ssm_conv(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """x [1, sequences, d, k − 1 + n], kernel [1, 1, d, k] → [1, sequences, n, d]."""
    k = kernel.shape[3]
    n = x.shape[3] - k + 1
    seen = x[..., np.arange(n)[:, None] + np.arange(k)]  # [1, sequences, d, n, k]
    return (seen * kernel[:, :, :, None]).sum(-1).swapaxes(2, 3)


@computes("ssm_scan")
def ssm_scan(
    states: np.ndarray,
    x: np.ndarray,
    dt: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    ids: np.ndarray,
) -> np.ndarray:
    """The selective scan of Mamba (arXiv 2312.00752, 2405.21060): y and the last states, flat.

    states [slots, heads, d, state], x [sequences, n, heads, d], dt [1, sequences, n, heads],
    A [1, 1, heads, 1 or state], B and C [sequences, n, groups, state], ids [1, 1, 1, sequences].
    """
    state = states[in_range(ids[0, 0, 0], len(states))]  # [sequences, heads, d, state]
    steps = np.logaddexp(0, dt[0])[..., None, None]  # [sequences, n, heads, 1, 1]
    shared = x.shape[2] // B.shape[2]
    B, C = (np.repeat(m, shared, 2)[:, :, :, None] for m in (B, C))  # [sequences, n, heads, 1, …]
    y = np.empty_like(x)
    for i in range(x.shape[1]):
        t = steps[:, i]
        state = state * np.exp(t * A[0, 0, :, None]) + t * x[:, i, :, :, None] * B[:, i]
        y[:, i] = (state * C[:, i]).sum(-1)
    return np.concatenate([y.reshape(-1), state.reshape(-1)])[None, None, None]


@computes("gated_delta_net")
def gated_delta_net(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    states: np.ndarray,
) -> np.ndarray:
    """The gated delta rule (arXiv 2412.06464), token by token: y and the last states, in rows.

    q and k [sequences, n, groups, d], v [sequences, n, heads, d], decay [sequences, n, heads, 1 or
    d], beta [sequences, n, heads, 1], states [sequences, heads, values, keys].
    """
    _, n, heads, d = v.shape
    q, k = (np.tile(x, (1, 1, heads // x.shape[2], 1)) for x in (q, k))
    y = np.empty_like(v)
    for i in range(n):
        states = states * np.exp(decay[:, i, :, None])
        known = (states * k[:, i, :, None]).sum(-1)
        states = states + (beta[:, i] * (v[:, i] - known))[..., None] * k[:, i, :, None]
        y[:, i] = (states * q[:, i, :, None]).sum(-1) / np.sqrt(d)
    return np.concatenate([y.reshape(-1), states.reshape(-1)]).reshape(1, 1, -1, d * heads)


@computes("solve_tri")
def solve_tri(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Forward substitution: the lower triangle of a [b3, b2, n, n], b [b3, b2, n, k]."""
    x = np.zeros_like(b)
    for i in range(a.shape[2]):
        known = (a[:, :, i, :i, None] * x[:, :, :i]).sum(2)
        x[:, :, i] = (b[:, :, i] - known) / a[:, :, i, i, None]
    return x
