"""Poolside's Laguna: gated attention with numbers of heads by layer, local layers with a rope of
their own, a router by sigmoids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Batch, LayerMemory
from ggmodel.nn import Linear

FULL, LOCAL = "full_attention", "sliding_attention"
USUAL = {
    FULL: {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
    LOCAL: {"rope_theta": 1e4, "partial_rotary_factor": 1.0},
}


def _base(kind: str) -> Any:
    return lambda hf: (hf.get("rope_parameters") or USUAL).get(kind, {}).get("rope_theta")


def _dims(kind: str) -> Any:
    def find(hf: Mapping[str, Any]) -> int:
        ropes = hf.get("rope_parameters") or USUAL
        return int(hf["head_dim"] * ropes.get(kind, {}).get("partial_rotary_factor", 1.0))

    return find


def _heads(hf: Mapping[str, Any]) -> list[int]:
    heads = hf["num_attention_heads"]
    return hf.get("num_attention_heads_per_layer") or [heads] * hf["num_hidden_layers"]


def _pattern(hf: Mapping[str, Any]) -> list[bool]:
    return nn.sliding_layers(hf) or [False] * hf["num_hidden_layers"]


def _dense_layers(hf: Mapping[str, Any]) -> int:
    return [*(hf.get("mlp_layer_types") or ["dense"]), "sparse"].index("sparse")


class LagunaConfig(nn.SharedExpertsConfig):
    fixed = {
        "gating": ...,  # the tensors tell
        "attention_bias": ...,
        "moe_apply_router_weight_on_input": False,
        f"rope_parameters.{LOCAL}.rope_type": "default",
    }

    each_heads: list = kv("attention.head_count", hf=_heads)
    heads: Any = property(lambda h: max(h.each_heads))
    rope_base: float = kv("rope.freq_base", hf=_base(FULL), default=5e5)
    rope_dims: int = kv("rope.dimension_count", hf=_dims(FULL))
    local_base: float = kv("rope.freq_base_swa", hf=_base(LOCAL), default="rope_base")
    local_dims: int = kv("rope.dimension_count_swa", hf=_dims(LOCAL), default="head_dim")
    window: int = kv("attention.sliding_window", hf="sliding_window", default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[1])
    dense_layers: int = kv("leading_dense_block_count", hf=_dense_layers)
    gating: int = kv("expert_gating_func", hf=lambda hf: nn.SIGMOID, default=nn.SIGMOID)
    normalize: bool = kv("expert_weights_norm", hf=lambda hf: True, default=False)
    expert_scale: float = kv("expert_weights_scale", hf="moe_routed_scaling_factor", default=1.0)
    router_cap: float = kv(
        "router_logit_softcapping", hf="moe_router_logit_softcapping", default=0.0
    )


class Attention(nn.NormedAttention):
    """Heads, and a gate for each of them or each of their numbers, by the tensors."""

    q: Linear = gguf("attn_q", hf="q_proj", shape=("width", None))
    gate: Linear = gguf("attn_gate", hf="g_proj", shape=("width", None))
    out: Linear = gguf("attn_output", hf="o_proj", shape=(None, "width"))
    heads = property(lambda self: self.q.weight.dim(1) // self.config.head_dim)

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        h = self.config
        q = self.q_norm(self.q(x).reshape(h.head_dim, self.heads, -1))
        k = self.k_norm(self.k(x).reshape(h.head_dim, h.kv_heads, -1))
        v = self.v(x).reshape(h.value_dim, h.kv_heads, -1)
        q, k = cache.rotate(q, batch.positions), cache.rotate(k, batch.positions)
        y, gate = nn.attention(q, k, v, cache, scale=h.scale), self.gate(x).softplus()
        y = y.reshape(h.value_dim, self.heads, -1)
        y = y * gate.reshape(gate.dim(0) // self.heads, self.heads, -1)
        return self.out(y.reshape(h.value_dim * self.heads, -1))


class Router(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.softcap(super().forward(x), self.config.router_cap)


class Experts(nn.GatedExperts):
    router: Router = gguf("ffn_gate_inp", hf="gate", shape=("width", "experts"))
    bias: Tensor = nn.selection_bias(
        "experts.e_score_correction_bias", "gate.e_score_correction_bias"
    )
    shared: nn.SharedExpert = gguf(hf=("shared_expert", "shared_experts"))


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn: nn.GatedMLP | Experts


@register("laguna", hf="LagunaForCausalLM")
class Laguna(nn.Decoder):
    config: LagunaConfig
    layers: list[Layer]

    def validate(self) -> None:
        said, there = self.config.each_heads, [layer.attn.heads for layer in self.layers]
        if said != there:
            raise ConfigError(f"attention.head_count is {said}; the tensors have {there}")

    def caches(self) -> list[Causal | Sliding]:
        h, rope = self.config, self.rotary.rope(RopeType.NEOX)
        local = nn.Rope(h.local_dims, h.local_base, type=RopeType.NEOX)
        return Sliding.where(h.local, h.window, [local if near else rope for near in h.local])
