"""The state-space model of `models/`: its weights, and its logits computed again in numpy from the
whole text, a token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ggmodel.gguf_file import MemorySource

MODELS = Path(__file__).parent / "models"

VOCABULARY, HIDDEN, HEADS, INNER, STATE, KERNEL, RANK = 24, 8, 2, 12, 5, 4, 3
EPS = 1e-5

Weights = dict[str, np.ndarray]


def weights(kinds: str) -> Weights:
    """A model with a layer for each letter: s is a state space, a is attention."""
    rng = np.random.default_rng(7)

    def normal(*shape: int, scale: float = 0.0) -> np.ndarray:
        scale = scale or shape[-1] ** -0.5
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    made = {"token_embd.weight": normal(VOCABULARY, HIDDEN, scale=1.0)}
    made["output.weight"] = normal(VOCABULARY, HIDDEN)
    made["output_norm.weight"] = 1 + normal(HIDDEN, scale=0.1)
    for i, kind in enumerate(kinds):
        layer = {"attn_norm.weight": 1 + normal(HIDDEN, scale=0.1)}
        if kind == "a":
            layer["attn_qkv.weight"] = normal(3 * HIDDEN, HIDDEN, scale=1.0)
            layer["attn_output.weight"] = normal(HIDDEN, HIDDEN)
        else:
            layer["ssm_in.weight"] = normal(2 * INNER, HIDDEN, scale=0.7)
            layer["ssm_conv1d.weight"] = normal(INNER, KERNEL)
            layer["ssm_conv1d.bias"] = normal(INNER, scale=0.1)
            layer["ssm_x.weight"] = normal(RANK + 2 * STATE, INNER)
            layer["ssm_dt.weight"] = normal(INNER, RANK)
            layer["ssm_dt.bias"] = normal(INNER, scale=0.5) - 1
            layer["ssm_a"] = -np.exp(normal(INNER, STATE, scale=0.5) - 2)  # a long memory
            layer["ssm_d"] = normal(INNER, scale=1.0)
            layer["ssm_out.weight"] = normal(HIDDEN, INNER)
        made |= {f"blk.{i}.{name}": values for name, values in layer.items()}
    return made


def source(kinds: str) -> MemorySource:
    keys = {
        "block_count": len(kinds),
        "embedding_length": HIDDEN,
        "context_length": 512,
        "attention.layer_norm_rms_epsilon": EPS,
        "attention.head_count": HEADS,
        "ssm.conv_kernel": KERNEL,
        "ssm.inner_size": INNER,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": RANK,
    }
    metadata = {f"statespace.{key}": value for key, value in keys.items()}
    return MemorySource({"general.architecture": "statespace", **metadata}, weights(kinds))


def logits(kinds: str, tokens: Sequence[int]) -> np.ndarray:
    """After each token, float64 [n, vocabulary]."""
    w = {name: values.astype(np.float64) for name, values in weights(kinds).items()}
    x = w["token_embd.weight"][np.asarray(tokens)]
    for i, kind in enumerate(kinds):
        prefix = f"blk.{i}."
        layer = {n.removeprefix(prefix): v for n, v in w.items() if n.startswith(prefix)}
        mix = attention if kind == "a" else state_space
        x = x + mix(layer, normed(x, layer["attn_norm.weight"]))
    return normed(x, w["output_norm.weight"]) @ w["output.weight"].T


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def state_space(w: Weights, rows: np.ndarray) -> np.ndarray:
    state, seen, out = np.zeros((INNER, STATE)), np.zeros((KERNEL, INNER)), []
    for row in rows:
        x, z = np.split(w["ssm_in.weight"] @ row, 2)
        seen = np.vstack([seen[1:], x])
        x = silu((seen * w["ssm_conv1d.weight"].T).sum(0) + w["ssm_conv1d.bias"])
        dt, b, c = np.split(w["ssm_x.weight"] @ x, [RANK, RANK + STATE])
        dt = np.log1p(np.exp(w["ssm_dt.weight"] @ dt + w["ssm_dt.bias"]))[:, None]
        state = state * np.exp(dt * w["ssm_a"]) + dt * x[:, None] * b
        out.append(w["ssm_out.weight"] @ ((state @ c + w["ssm_d"] * x) * silu(z)))
    return np.stack(out)


def attention(w: Weights, rows: np.ndarray) -> np.ndarray:
    """Attention of each position to itself and earlier ones; pairs of neighbours rotated."""
    n, d = len(rows), HIDDEN // HEADS
    q, k, v = (rows @ m.T for m in np.split(w["attn_qkv.weight"], 3))
    q, k, v = (x.reshape(n, HEADS, d) for x in (q, k, v))
    angles = np.arange(n)[:, None, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    q, k = ((x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles) for x in (q, k))
    scores = np.einsum("qhd,khd->hqk", q, k.conj()).real * d**-0.5
    scores[:, ~np.tri(n, dtype=bool)] = -np.inf
    seen = np.exp(scores - scores.max(-1, keepdims=True))
    seen /= seen.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", seen, v).reshape(n, -1) @ w["attn_output.weight"].T
