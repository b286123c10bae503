"""Nemotron-H: each layer is Mamba-2, attention without positions, a feed-forward part or experts.

A checkpoint with experts is a `nemotron_h_moe` in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal, Recurrent
from ggmodel.model import Batch, Stack
from ggmodel.nn import Embedding, ExpertLinear, Linear, RMSNorm

MAMBA, ATTENTION, MLP, EXPERTS = "mamba", "attention", "mlp", "moe"
KINDS = {
    **{"M": MAMBA, "*": ATTENTION, "-": MLP, "E": EXPERTS},  # letters of a pattern
    **{"linear_attention": MAMBA, "full_attention": ATTENTION},
    **{kind: kind for kind in (MAMBA, ATTENTION, MLP, EXPERTS)},
}


def _kinds(hf: Mapping[str, Any]) -> list[str]:
    """Layer → what it is."""
    said = hf.get("layers_block_type") or hf.get("layer_types") or hf["hybrid_override_pattern"]
    if unknown := {*said} - KINDS.keys():
        raise ConfigError(f"a layer is {min(unknown)!r:.40}; supported: {', '.join(KINDS)}")
    return [KINDS[kind] for kind in said]


def _where(**keys: str) -> Any:
    """For `kv(hf=…)`: layer → the value of the key of its kind, 0 for other kinds."""

    def find(hf: Mapping[str, Any]) -> list[int]:
        values = {kind: hf.get(key) for kind, key in keys.items()}
        return [values.get(kind) or 0 for kind in _kinds(hf)]

    return find


def _routed(key: str, name: str, default: Any = 0, **bounds: Any) -> Any:
    """A hyperparameter of a model with experts."""

    def find(hf: Mapping[str, Any]) -> Any:
        value = hf.get(name)
        return value if EXPERTS in _kinds(hf) else None

    return kv(key, hf=find, default=default, **bounds)


class NemotronHConfig(nn.Mamba2Config, nn.HybridConfig):
    # The tensors tell the same, training alone reads it, or no part has it.
    fixed = {
        **dict.fromkeys(("use_bias", "use_conv_bias", "mamba_proj_bias", "chunk_size"), ...),
        **dict.fromkeys(("residual_in_fp32", "rescale_prenorm_residual", "expand"), ...),
        **{f"time_step_{key}": ... for key in ("min", "max", "floor")},
        # MTP layers are not loaded.
        **dict.fromkeys(("mtp_layers_block_type", "num_nextn_predict_layers"), ...),
        "num_hidden_layers": ...,
    }
    unread = ("shared_experts",)  # one, of that width

    layers: int = kv("block_count", hf=lambda hf: len(_kinds(hf)))
    eps: float = kv(
        "attention.layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon",
        hf="layer_norm_epsilon",
    )
    head_dim: int = kv("attention.key_length", hf=("head_dim", "attention_head_dim"))
    value_dim: int = kv("attention.value_length", hf=("head_dim", "attention_head_dim"))
    each_kv_heads: list = kv("attention.head_count_kv", hf=_where(attention="num_key_value_heads"))
    each_ffn: list = kv(
        "feed_forward_length", hf=_where(mlp="intermediate_size", moe="moe_intermediate_size")
    )
    ffn: Any = property(lambda h: max(h.each_ffn))
    experts: int = _routed("expert_count", "n_routed_experts")
    experts_used: int = _routed("expert_used_count", "num_experts_per_tok")
    expert_ffn: int = _routed("expert_feed_forward_length", "moe_intermediate_size")
    shared_experts: int = _routed("expert_shared_count", "n_shared_experts")
    shared_ffn: int = _routed(
        "expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"
    )
    latent: int = _routed("moe_latent_size", "moe_latent_size")
    normalize: bool = _routed("expert_weights_norm", "norm_topk_prob", False)
    expert_scale: float = _routed("expert_weights_scale", "routed_scaling_factor", 1.0)
    expert_groups: int = _routed("expert_group_count", "n_group", 1, least=1, divides="experts")
    expert_groups_used: int = _routed(
        "expert_group_used_count", "topk_group", 1, least=1, most="expert_groups"
    )
    gating = property(lambda h: nn.SIGMOID)
    expert_width = property(lambda h: h.latent or h.width)
    activation: str = nn.activation("silu", "mamba_hidden_act")
    mlp_activation: str = nn.activation("relu2", "mlp_hidden_act", "feed_forward_activation")


class FeedForward(nn.MLP):
    activation: Any = property(lambda self: self.config.mlp_activation)
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("width", None))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=(None, "width"))

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return super().forward(x)


class SharedExpert(FeedForward):
    up: Linear = gguf("ffn_up_shexp", hf="up_proj", shape=("width", "shared_ffn"))
    down: Linear = gguf("ffn_down_shexp", hf="down_proj", shape=("shared_ffn", "width"))


def _stacked(part: str, *shape: str) -> ExpertLinear:
    source = Stack(f"experts.{{}}.{part}_proj", "experts")
    return gguf(f"ffn_{part}_exps", hf=source, shape=(*shape, "experts"))


class Experts(nn.GatedExperts):
    """Experts without gates, which may see fewer numbers than the layer has."""

    gate: Any = None
    up: ExpertLinear = _stacked("up", "expert_width", "expert_ffn")
    down: ExpertLinear = _stacked("down", "expert_ffn", "expert_width")
    bias: Tensor = nn.selection_bias("gate.e_score_correction_bias", "gate.e_score_correction.bias")
    shared: SharedExpert = gguf(hf="shared_experts")
    narrow: Linear | None = gguf("ffn_latent_down", hf="fc1_latent_proj", shape=("width", "latent"))
    widen: Linear | None = gguf("ffn_latent_up", hf="fc2_latent_proj", shape=("latent", "width"))

    def forward(self, x: Tensor, batch: Batch, cache: tuple[()]) -> Tensor:
        ids, weights = self.choose(x)
        seen = x if self.narrow is None else self.narrow(x)
        y = self.up(seen.reshape(seen.dim(0), 1, -1), ids)
        y = self.down(nn.activate(self.config.mlp_activation, y), ids) * weights
        y = nn.sum_experts(y)
        return self.shared(x) + (y if self.widen is None else self.widen(y))


class Layer(nn.MixerLayer):
    mixer: nn.Attention | nn.Mamba2 | FeedForward | Experts = gguf(hf="mixer")


@register("nemotron_h", hf="NemotronHForCausalLM")
class NemotronH(nn.PlainDecoder):
    ignore_hf = ("mtp.*",)
    config: NemotronHConfig
    embed: Embedding = gguf(
        "token_embd", hf=("backbone.embeddings", "model.embeddings"), shape=("width", None)
    )
    layers: list[Layer] = gguf("blk", hf=("backbone.layers", "model.layers"), n="layers")
    norm: RMSNorm = gguf("output_norm", hf=("backbone.norm_f", "model.norm_f"), shape=("width",))

    @classmethod
    def stored_as(cls, hf: Mapping[str, Any], program: str | None = None) -> str:
        return "nemotron_h_moe" if EXPERTS in _kinds(hf) else "nemotron_h"

    def caches(self) -> list[Causal | Recurrent | tuple[()]]:
        h = self.config
        each = zip(h.each_kv_heads, h.each_ffn, strict=True)
        return [Causal() if heads else () if ffn else h.states for heads, ffn in each]


@register("nemotron_h_moe")
class NemotronHMoe(NemotronH):
    pass
