"""Nemotron-H: each layer is Mamba-2, attention without positions, or a feed-forward part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal, Recurrent
from ggmodel.model import Batch
from ggmodel.nn import Embedding, RMSNorm

MAMBA, ATTENTION, MLP = "mamba", "attention", "mlp"
KINDS = {
    **{"M": MAMBA, "*": ATTENTION, "-": MLP},  # letters of a pattern
    **{"linear_attention": MAMBA, "full_attention": ATTENTION},
    **{kind: kind for kind in (MAMBA, ATTENTION, MLP)},
}


def _kinds(hf: Mapping[str, Any]) -> list[str]:
    """Layer → what it is."""
    said = hf.get("layers_block_type") or hf.get("layer_types") or hf["hybrid_override_pattern"]
    if unknown := {*said} - KINDS.keys():
        raise ConfigError(f"a layer is {min(unknown)!r:.40}; supported: {', '.join(KINDS)}")
    return [KINDS[kind] for kind in said]


def _where(kind: str, key: str) -> Any:
    return lambda hf: [hf[key] if each == kind else 0 for each in _kinds(hf)]


class NemotronHConfig(nn.Mamba2Config, nn.HybridConfig):
    # The tensors tell the same, training alone reads it, or no part has it.
    fixed = {
        **dict.fromkeys(("use_bias", "use_conv_bias", "mamba_proj_bias", "chunk_size"), ...),
        **dict.fromkeys(("residual_in_fp32", "rescale_prenorm_residual", "expand"), ...),
        **{f"time_step_{key}": ... for key in ("min", "max", "floor")},
        # MTP layers are not loaded.
        **dict.fromkeys(("mtp_layers_block_type", "num_nextn_predict_layers"), ...),
        **{f"moe_{key}": ... for key in ("intermediate_size", "latent_size")},
        **dict.fromkeys(("moe_shared_expert_intermediate_size", "num_hidden_layers"), ...),
        **dict.fromkeys(("n_routed_experts", "n_shared_experts", "num_experts_per_tok"), ...),
        **dict.fromkeys(("routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob"), ...),
    }

    layers: int = kv("block_count", hf=lambda hf: len(_kinds(hf)))
    eps: float = kv(
        "attention.layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon",
        hf="layer_norm_epsilon",
    )
    head_dim: int = kv("attention.key_length", hf=("head_dim", "attention_head_dim"))
    value_dim: int = kv("attention.value_length", hf=("head_dim", "attention_head_dim"))
    each_kv_heads: list = kv("attention.head_count_kv", hf=_where(ATTENTION, "num_key_value_heads"))
    each_ffn: list = kv("feed_forward_length", hf=_where(MLP, "intermediate_size"))
    ffn: Any = property(lambda h: max(h.each_ffn))
    activation: str = nn.activation("silu", "mamba_hidden_act")
    mlp_activation: str = nn.activation("relu2", "mlp_hidden_act", "feed_forward_activation")


class FeedForward(nn.MLP):
    activation: Any = property(lambda self: self.config.mlp_activation)

    def forward(self, x: Tensor, batch: Batch, cache: tuple[()]) -> Tensor:
        return super().forward(x)


class Layer(nn.MixerLayer):
    mixer: nn.Attention | nn.Mamba2 | FeedForward = gguf(hf="mixer")


@register("nemotron_h", hf="NemotronHForCausalLM")
class NemotronH(nn.PlainDecoder):
    ignore_hf = ("mtp.*",)
    config: NemotronHConfig
    embed: Embedding = gguf(
        "token_embd", hf=("backbone.embeddings", "model.embeddings"), shape=("width", None)
    )
    layers: list[Layer] = gguf("blk", hf=("backbone.layers", "model.layers"), n="layers")
    norm: RMSNorm = gguf("output_norm", hf=("backbone.norm_f", "model.norm_f"), shape=("width",))

    def caches(self) -> list[Causal | Recurrent | tuple[()]]:
        h = self.config
        each = zip(h.each_kv_heads, h.each_ffn, strict=True)
        return [Causal() if heads else () if ffn else h.states for heads, ffn in each]
