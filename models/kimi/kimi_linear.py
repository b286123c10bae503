"""Kimi Linear: gated delta nets that forget by channel in most layers, latent attention without
positions in the others, DeepSeek V3's router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal, LayerStates, Recurrent
from ggmodel.model import Batch, Chain, NegatedExp, Reshape
from ggmodel.nn import ExpertLinear, Linear, RMSNorm


def _linear(key: str, other: str) -> Any:
    """A number of delta nets: of their own table as published, of the config as transformers
    writes it."""

    def find(hf: Mapping[str, Any]) -> Any:
        value = hf.get(other)
        return (hf.get("linear_attn_config") or {}).get(key, value)

    return find


def _kv_heads(hf: Mapping[str, Any]) -> list[int]:
    """One for a layer of attention, whose latents all heads share."""
    numbers = range(hf["num_hidden_layers"])
    kinds, said = hf.get("layer_types"), hf.get("linear_attn_config") or {}
    if kinds is None and "full_attn_layers" in said:
        return [int(i + 1 in said["full_attn_layers"]) for i in numbers]
    recurrent = nn.recurrent_layers(hf)
    return [int(i > 0 and i % 4 == 0 if recurrent is None else not recurrent[i]) for i in numbers]


def _dense(hf: Mapping[str, Any]) -> int:
    first, kinds = hf.get("first_k_dense_replace", 1), hf.get("mlp_layer_types")
    return first if kinds is None else [*kinds, "sparse"].index("sparse")


class KimiLinearConfig(nn.DeltaNetConfig, nn.LatentConfig, nn.SharedExpertsConfig):
    unread = (*nn.LatentConfig.unread, *nn.SharedExpertsConfig.unread)
    fixed = {
        **dict.fromkeys(("attention_bias", "linear_num_heads"), ...),  # the tensors tell
        **dict.fromkeys(("linear_attn_config", "layer_types"), ...),  # read
    }

    context: int = kv("context_length", hf=("model_max_length", "max_position_embeddings"))
    each_kv_heads: list = kv("attention.head_count_kv", hf=_kv_heads)
    kv_heads: Any = property(lambda h: 1)
    kernel: int = kv(
        "ssm.conv_kernel", hf=_linear("short_conv_kernel_size", "linear_conv_kernel_dim"), least=2
    )
    state: int = kv("kda.head_dim", hf=_linear("head_dim", "linear_head_dim"), least=1)
    groups: Any = property(lambda h: h.heads)
    values: Any = property(lambda h: h.heads)
    inner: Any = property(lambda h: h.heads * h.state)
    dense_layers: int = kv("leading_dense_block_count", hf=_dense, default=0)
    experts: int = kv("expert_count", hf=("num_experts", "num_local_experts"), default=0)
    experts_used: int = kv(
        "expert_used_count", hf=("num_experts_per_token", "num_experts_per_tok"), default=0
    )
    gating: int = kv("expert_gating_func", hf=lambda hf: nn.SIGMOID, default=nn.SIGMOID)
    normalize: bool = kv(
        "expert_weights_norm", hf=("moe_renormalize", "norm_topk_prob"), default=True
    )
    expert_groups: int = kv(
        "expert_group_count",
        hf=("num_expert_group", "n_group"),
        default=1,
        least=1,
        divides="experts",
    )


def _taps(part: str) -> Tensor:
    shape = ("kernel", 1, "inner")
    return gguf(f"ssm_conv1d_{part}.weight", hf=f"{part}_conv1d.weight", shape=shape)


class DeltaNet(nn.DeltaNet):
    qkv: Any = None
    alpha: Any = None
    q: Linear = gguf("attn_q", hf="q_proj", shape=("width", "inner"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("width", "inner"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("width", "inner"))
    q_taps: Tensor = _taps("q")
    k_taps: Tensor = _taps("k")
    v_taps: Tensor = _taps("v")
    beta: Linear = gguf("ssm_beta", hf="b_proj", shape=("width", "heads"))
    forget_a: Linear = gguf("ssm_f_a", hf="f_a_proj", shape=("width", "state"))
    forget_b: Linear = gguf("ssm_f_b", hf="f_b_proj", shape=("state", "inner"))
    bias: Tensor = gguf("ssm_dt.bias", hf="dt_bias", shape=("inner",))
    rates: Tensor = gguf(
        "ssm_a",
        hf="A_log",
        op=Chain(NegatedExp(), Reshape((-1, 1), (1, 1, -1, 1))),
        shape=(1, "heads"),
    )
    gate: Linear = gguf("ssm_g_a", hf="g_a_proj", shape=("width", "state"))
    gate_b: Linear = gguf("ssm_g_b", hf="g_b_proj", shape=("state", "inner"))
    norm: RMSNorm = gguf("ssm_norm", hf="o_norm", shape=("state",))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("inner", "width"))

    @property
    def taps(self) -> Tensor:
        h, each = self.config, (self.q_taps, self.k_taps, self.v_taps)
        q, k, v = (x.reshape(h.kernel, h.inner) for x in each)
        return q.concat(k, 1).concat(v, 1)

    def forward(self, x: Tensor, batch: Batch, cache: LayerStates) -> Tensor:
        h = self.config
        qkv = self.q(x).concat(self.k(x), 0).concat(self.v(x), 0)
        decay = (self.forget_b(self.forget_a(x)) + self.bias).softplus()
        decay = (decay.reshape(h.state, h.heads, -1) * self.rates).reshape(h.inner, -1)
        y = cache.each(self.remember, qkv, decay, self.beta(x).sigmoid())
        y = self.norm(y.reshape(h.state, h.heads, -1))
        gate = self.gate_b(self.gate(x)).reshape(*y.shape).sigmoid()
        return self.out((y * gate).reshape(h.inner, -1))


class Experts(nn.GatedExperts):
    gate: ExpertLinear = nn.stacked("gate", "w1")
    up: ExpertLinear = nn.stacked("up", "w3")
    down: ExpertLinear = nn.stacked("down", "w2")
    bias: Tensor = nn.selection_bias("gate.e_score_correction_bias")
    shared: nn.SharedExpert = gguf(hf="shared_experts")


class Layer(nn.PreNormLayer):
    attn: DeltaNet | nn.LatentAttention
    ffn: nn.GatedMLP | Experts = gguf(hf=("mlp", "block_sparse_moe"))


@register("kimi-linear", hf="KimiLinearForCausalLM")
class KimiLinear(nn.PlainDecoder):
    config: KimiLinearConfig
    layers: list[Layer]

    def validate(self) -> None:
        said = self.config.each_kv_heads
        there = [int(isinstance(layer.attn, nn.LatentAttention)) for layer in self.layers]
        if [int(n > 0) for n in said] != there:
            raise ConfigError(f"attention.head_count_kv is {said}; the tensors have {there}")

    def caches(self) -> list[Causal | Recurrent]:
        h = self.config
        return [Causal() if heads else h.states for heads in h.each_kv_heads]
