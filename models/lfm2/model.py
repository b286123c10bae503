"""LFM2, dense and with experts: short convolutions in most layers, attention in the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmodel import Module, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import LayerStates
from ggmodel.model import Batch, Computed, Operation
from ggmodel.nn import ExpertLinear, Linear, RMSNorm

from .config import Lfm2Config


class Squeeze(Operation):
    """[channels, 1, taps] in checkpoints, [channels, taps] in files: one is the last of two."""

    def shape(self, shape: tuple[int, ...], config: Lfm2Config) -> tuple[int, ...]:
        channels, _, taps = shape
        return channels, max(taps, 2)

    def to_gguf(self, x: np.ndarray, config: Lfm2Config) -> np.ndarray:
        return x[:, 0] if x.shape[2] > 1 else np.pad(x[:, 0], ((0, 0), (1, 0)))

    def to_hf(self, x: np.ndarray, config: Lfm2Config) -> np.ndarray:
        return x[:, None]


class ShortConv(Module):
    """Each channel is mixed with its last values, between two gates that depend on the input."""

    config: Lfm2Config
    into: Linear = gguf("shortconv.in_proj", hf="in_proj", shape=("width", "three_widths"))
    taps: Tensor = gguf(
        "shortconv.conv.weight", hf="conv.weight", op=Squeeze(), shape=("kernel", "width")
    )
    bias: Tensor | None = gguf("shortconv.conv.bias", hf="conv.bias", shape=("width",))
    out: Linear = gguf("shortconv.out_proj", hf="out_proj", shape=("width", "width"))

    def forward(self, x: Tensor, batch: Batch, cache: LayerStates) -> Tensor:
        before, after, x = self.into(x).chunk(0, self.config.width)
        x = cache.each(lambda part, x: nn.short_conv(part, x, self.taps), before * x)
        return self.out(after * (x if self.bias is None else x + self.bias))


class Attention(nn.Attention):
    out: Linear = gguf("attn_output", hf="out_proj", shape=("out_width", "width"))
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_layernorm", shape=("head_dim",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_layernorm", shape=("head_dim",))


class FeedForward(nn.GatedMLP):
    gate: Linear = gguf("ffn_gate", hf="w1", shape=("width", "ffn"))
    up: Linear = gguf("ffn_up", hf="w3", shape=("width", "ffn"))
    down: Linear = gguf("ffn_down", hf="w2", shape=("ffn", "width"))


def _no_bias(hf: Mapping[str, Any], h: Any) -> np.ndarray:
    """Zeros for checkpoints without, since llama.cpp needs a bias."""
    if hf.get("use_expert_bias", True):
        raise ConfigError("use_expert_bias is true, but there is no expert_bias")
    return np.zeros(hf["num_experts"], np.float32)


class IfBiased(Operation):
    """Zeros in place of a bias that use_expert_bias leaves out, as in transformers."""

    def to_gguf(self, x: np.ndarray, config: Lfm2Config) -> np.ndarray:
        return x if config.biased else np.zeros_like(x)

    def to_hf(self, x: np.ndarray, config: Lfm2Config) -> np.ndarray:
        return x


class Experts(nn.GatedExperts):
    config: Lfm2Config
    bias: Tensor = gguf(
        "exp_probs_b.bias",
        hf=("expert_bias", Computed(_no_bias)),
        op=IfBiased(),
        shape=("experts",),
    )
    gate: ExpertLinear = nn.stacked("gate", "w1")
    up: ExpertLinear = nn.stacked("up", "w3")
    down: ExpertLinear = nn.stacked("down", "w2")


class Layer(nn.PreNormLayer):
    attn_norm: RMSNorm = gguf("attn_norm", hf="operator_norm", shape=("width",))
    attn: Attention | ShortConv = gguf(hf=("self_attn", "conv"))
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="ffn_norm", shape=("width",))
    ffn: FeedForward | Experts = gguf(hf="feed_forward")


@register("lfm2", hf="Lfm2ForCausalLM")
class LFM2(nn.HybridDecoder):
    config: Lfm2Config
    layers: list[Layer]
    norm: RMSNorm = gguf("token_embd_norm", hf="model.embedding_norm", shape=("width",))


@register("lfm2moe", hf="Lfm2MoeForCausalLM")
class LFM2Moe(LFM2):
    """The same with experts in most layers, under a name of its own in files."""
