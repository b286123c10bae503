"""Attention over a cache."""

from __future__ import annotations

from ..ml import Tensor
from ..model.memory import LayerMemory


def attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache: LayerMemory,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    vmla: Tensor | None = None,
) -> Tensor:
    """Stores keys and values, then attends to all positions that each row sees.

    Args:
        q: [d, heads, n]. k: [d, kv heads, n]. v: [dv, kv heads, n]. No k and v (None) in a layer
            that shares those of another, `cache.shares`.
        scale: of the scores, usually 1/√d.
        softcap, sinks, vmla: see `Tensor.scaled_dot_product_attention`.

    Returns:
        F32 [dv · heads, n].
    """
    if k is not None and v is not None:
        cache.put(k, v)
    keys, values, mask = cache.get()
    out = q.scaled_dot_product_attention(
        keys,
        values,
        mask,
        sinks,
        vmla,
        scale=scale,
        softcap=softcap,
        cache_config_applied=True,
        parts=cache.parts,
    )
    return out.reshape(out.dim(0) * out.dim(1), -1)
