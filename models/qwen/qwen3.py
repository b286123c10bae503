"""Qwen 3, dense and with experts: llama's blocks with a norm on each query and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmodel import gguf, kv, nn, register
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Stack
from ggmodel.nn import ExpertLinear, Linear, RMSNorm


def _experts(hf: Mapping[str, Any]) -> int | None:
    return hf.get("num_experts") or hf.get("num_local_experts")


def _pattern(hf: Mapping[str, Any]) -> list[bool] | None:
    """In models with experts all layers are local."""
    if not hf.get("use_sliding_window"):
        return None
    return [True] * hf["num_hidden_layers"] if _experts(hf) else nn.sliding_layers(hf)


class Qwen3Config(nn.DecoderConfig):
    # Read where there are windows; the tensors tell which layers have experts.
    fixed = {"max_window_layers": ..., "mlp_only_layers": ..., "decoder_sparse_step": ...}

    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=32768)
    window: int = kv("attention.sliding_window", hf=nn.sliding_window, default=0)
    pattern: list = kv("attention.sliding_window_pattern", hf=_pattern, default=[1])
    experts: int = kv("expert_count", hf=_experts, default=0)
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok", default=0)
    expert_ffn: int = kv("expert_feed_forward_length", hf="moe_intermediate_size", default=0)
    # llama.cpp's converter does not write this; all published models normalize.
    normalize: bool = kv("expert_weights_norm", hf="norm_topk_prob", default=True)


class Attention(nn.Attention):
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("head_dim",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("head_dim",))


def _stack(name: str, *shape: str) -> ExpertLinear:
    source = Stack(f"experts.{{}}.{name}_proj", "experts")
    return gguf(f"ffn_{name}_exps", hf=source, shape=(*shape, "experts"))


class Experts(nn.GatedExperts):
    router: Linear = gguf("ffn_gate_inp", hf="gate", shape=("width", "experts"))
    gate: ExpertLinear = _stack("gate", "width", "expert_ffn")
    up: ExpertLinear = _stack("up", "width", "expert_ffn")
    down: ExpertLinear = _stack("down", "expert_ffn", "width")


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn: nn.GatedMLP | Experts


@register("qwen3", hf="Qwen3ForCausalLM")
class Qwen3(nn.Decoder):
    config: Qwen3Config
    layers: list[Layer]

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, self.rotary.rope(RopeType.NEOX))


@register("qwen3moe", hf="Qwen3MoeForCausalLM")
class Qwen3Moe(Qwen3):
    """The same with experts in most layers, under a name of its own in files."""
