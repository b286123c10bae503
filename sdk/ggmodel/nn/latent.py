"""Multi-head latent attention (MLA): keys and values of all heads are made of one latent vector a
token, and the cache holds that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..ml import Tensor
from ..model.batch import Batch
from ..model.cache import LayerMemory
from ..model.module import Module, gguf, kv
from ..model.operations import HeadPart, Transpose
from .decoder import DecoderConfig, attention
from .layers import Linear, RMSNorm
from .rope import paper_magnitude, scaling_factor, scaling_of, yarn_magnitude

_EPS = 1e-6  # of norms of latents in transformers, whatever `rms_norm_eps` is


def _scale_of_scores(hf: Mapping[str, Any]) -> float | None:
    scale = scaling_of(hf).get("mscale_all_dim")
    return 0.1 * scale if scale else None


def _magnitude(hf: Mapping[str, Any]) -> float | None:
    """The rope's. llama.cpp reads none beside `yarn_log`: both of DeepSeek's scales are equal."""
    magnitude = yarn_magnitude(hf)
    if magnitude is None and _scale_of_scores(hf) and (factor := scaling_factor(hf)):
        return paper_magnitude(factor)
    return magnitude


class LatentConfig(DecoderConfig):
    """The hyperparameters of `LatentAttention`. `head_dim` and `value_dim` are the cache's, of one
    head of keys and values."""

    unread = ("kv_heads", "value_dim")
    fixed = {
        "rope_interleave": True,
        "num_key_value_heads": ...,
        "head_dim": ...,
        "rope_scaling.mscale_all_dim": ...,  # read
    }

    query_rank: int = kv(
        "attention.q_lora_rank", hf=lambda hf: hf.get("q_lora_rank") or 0, default=0
    )
    rank: int = kv("attention.kv_lora_rank", hf="kv_lora_rank")
    rope_dims: int = kv("rope.dimension_count", hf="qk_rope_head_dim")
    kv_heads: int = kv("attention.head_count_kv", hf=lambda hf: 1)
    head_dim: int = kv(
        "attention.key_length", hf=lambda hf: hf["kv_lora_rank"] + hf["qk_rope_head_dim"]
    )
    value_dim: int = kv("attention.value_length", hf="kv_lora_rank")
    query_dim: int = kv(
        "attention.key_length_mla", hf=lambda hf: hf["qk_nope_head_dim"] + hf["qk_rope_head_dim"]
    )
    out_dim: int = kv("attention.value_length_mla", hf="v_head_dim")
    # YaRN's magnitude counts for scores a second time: a tenth of `mscale_all_dim`.
    yarn_log: float = kv("rope.scaling.yarn_log_multiplier", hf=_scale_of_scores, default=0.0)
    yarn_magnitude: float | None = kv(
        "rope.scaling.yarn_attn_factor",
        hf=_magnitude,
        default=lambda h: 1.0 if h.yarn_log else None,
    )
    latent_eps: Any = property(lambda h: _EPS)  # of norms of latents
    plain_dim = property(lambda h: h.query_dim - h.rope_dims)
    q_width = property(lambda h: h.heads * h.query_dim)
    out_width = property(lambda h: h.heads * h.out_dim)

    @property
    def scale(self) -> float:
        scaled = self.scaling and self.rope_factor > 1
        magnitude = 1 + self.yarn_log * math.log(self.rope_factor) if scaled else 1.0
        return magnitude**2 * self.query_dim**-0.5


def _rows(index: int) -> HeadPart:
    return HeadPart("kv_b_proj.weight", index, ("plain_dim", "out_dim"), "heads")


class Queries(Module):
    """Queries by one matrix."""

    whole: Linear = gguf("attn_q", hf="q_proj", shape=("width", "q_width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [q_width, n]."""
        return self.whole(x)


class LatentQueries(Module):
    """Queries that are made of a latent vector of their own."""

    into: Linear = gguf("attn_q_a", hf="q_a_proj", shape=("width", "query_rank"))
    norm: RMSNorm = gguf("attn_q_a_norm", hf="q_a_layernorm", shape=("query_rank",))
    out: Linear = gguf("attn_q_b", hf="q_b_proj", shape=("query_rank", "q_width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [q_width, n]."""
        return self.out(self.norm(self.into(x), self.config.latent_eps))


class LatentAttention(Module):
    """Multi-head latent attention (arXiv 2405.04434, 2.1), absorbed: queries are multiplied by the
    matrix that makes keys of latents, and results by the one that makes values. All heads then
    attend to one key a token, its rotated part before its latent, and to that latent as value.
    It reads `LatentConfig`."""

    q: Queries | LatentQueries
    kv_a: Linear = gguf("attn_kv_a_mqa", hf="kv_a_proj_with_mqa", shape=("width", "head_dim"))
    kv_norm: RMSNorm = gguf("attn_kv_a_norm", hf="kv_a_layernorm", shape=("rank",))
    k_b: Tensor = gguf(
        "attn_k_b.weight", hf=_rows(0), op=Transpose(), shape=("plain_dim", "rank", "heads")
    )
    v_b: Tensor = gguf("attn_v_b.weight", hf=_rows(1), shape=("rank", "out_dim", "heads"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("out_width", "width"))

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        """x [width, n] → [width, n] F32."""
        h, positions = self.config, batch.positions
        q = self.q(x).reshape(h.query_dim, h.heads, -1)
        q, q_rope = q.chunk_sections(0, h.plain_dim, h.rope_dims)
        latent, k_rope = self.kv_a(x).chunk_sections(0, h.rank, h.rope_dims)
        latent = self.kv_norm(latent, h.latent_eps).reshape(h.rank, 1, -1)
        k_rope = k_rope.contiguous(h.rope_dims, 1, -1)
        q = self.k_b.mulmat(q.permute(0, 2, 1)).permute(0, 2, 1)
        if cache.rope is not None:
            q_rope, k_rope = cache.rotate(q_rope, positions), cache.rotate(k_rope, positions)
        q, k = q_rope.concat(q, 0), k_rope.concat(latent, 0)
        return self.out(attention(q, k, latent, cache, scale=h.scale, vmla=self.v_b))
