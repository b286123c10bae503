"""Apertus: norms on each query and key, a feed-forward part without gate, activated by xIELU, whose
numbers each layer has learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.nn import RMSNorm


def _learned(name: str) -> Callable[[Mapping[str, Any]], list[float] | None]:
    """The number of each layer, which is a tensor in checkpoints."""

    def find(hf: Mapping[str, Any]) -> list[float] | None:
        names = [f"model.layers.{i}.mlp.act_fn.{name}" for i in range(hf["num_hidden_layers"])]
        tensors = hf.get("tensors:", {})
        there = all(name in tensors for name in names)
        return [float(tensors[name].item()) for name in names] if there else None

    return find


class ApertusConfig(nn.DecoderConfig):
    fixed = {"hidden_act": "xielu"}
    unread = ("eps_below",)

    alpha_above: list = kv("xielu.alpha_p", hf=_learned("alpha_p"))
    alpha_below: list = kv("xielu.alpha_n", hf=_learned("alpha_n"))
    beta: list = kv("xielu.beta", hf=_learned("beta"))
    eps_below: list = kv("xielu.eps", hf=_learned("eps"))  # nearly 0: it keeps gradients
    activation: Any = property(lambda h: "silu")  # nothing reads it


class FeedForward(nn.MLP):
    """xIELU(x) = above · max(x, 0)² + beta · x + below · (exp(y) − 1 − y), y = min(x, 0)
    (arXiv 2411.13010)."""

    above: float
    below: float
    beta: float

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        y = x.scale(-1).relu().scale(-1)
        curve = (y.exp() - y - y.fill(1.0)).scale(self.below)
        return self.down(x.relu().sqr().scale(self.above) + x.scale(self.beta) + curve)


class Attention(nn.Attention):
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("head_dim",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("head_dim",))


class Layer(nn.PreNormLayer):
    attn_norm: RMSNorm = gguf("attn_norm", hf="attention_layernorm", shape=("width",))
    attn: Attention
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="feedforward_layernorm", shape=("width",))
    ffn: FeedForward


def _softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


@register("apertus", hf="ApertusForCausalLM")
class Apertus(nn.Decoder):
    ignore_hf = ("model.layers.*.mlp.act_fn.*",)  # hyperparameters in files
    config: ApertusConfig
    layers: list[Layer]

    def validate(self) -> None:
        h = self.config
        for numbers in (h.alpha_above, h.alpha_below, h.beta):
            if len(numbers) != h.layers:
                raise ConfigError(f"xielu has {len(numbers)} numbers for {h.layers} layers")
        for i, layer in enumerate(self.layers):
            part = layer.ffn
            part.above, part.beta = _softplus(h.alpha_above[i]), h.beta[i]
            part.below = h.beta[i] + _softplus(h.alpha_below[i])

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers
