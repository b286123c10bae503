"""Falcon H1: attention and Mamba-2 beside each other in each layer.

Files hold weights with the checkpoint's multipliers in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmodel import Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, LayerStates, Recurrent
from ggmodel.ml import RopeType
from ggmodel.model import Batch, LayerMemory, Operation
from ggmodel.nn import Embedding, Linear, RMSNorm

SINGLE = "embedding lm_head attention_in key attention_out ssm_in ssm_out".split()
LISTED = {"mlp": ["gate", "down"], "ssm": ["z", "x", "B", "C", "dt"]}
NAMES = [*SINGLE, *LISTED["mlp"], *LISTED["ssm"]]


def _multipliers(hf: Mapping[str, Any]) -> list[float]:
    lists = (hf.get(f"{part}_multipliers") or [1.0] * len(of) for part, of in LISTED.items())
    values = [hf.get(f"{name}_multiplier", 1.0) for name in SINGLE]
    return [float(x) for x in (*values, *(x for each in lists for x in each))]


class FalconH1Config(nn.Mamba2Config, nn.DecoderConfig):
    # The tensors tell the same, or no part has it.
    fixed = {
        **{f"mamba_{key}": ... for key in ("rms_norm", "conv_bias", "proj_bias", "use_mlp")},
        **dict.fromkeys(("mamba_chunk_size", "projectors_bias"), ...),
        "mamba_norm_before_gate": lambda hf: False if hf.get("mamba_rms_norm") else ...,
    }
    unread = ("multipliers",)

    multipliers: list = kv("multipliers", hf=_multipliers, default=[1.0] * len(NAMES))

    def multiplier(self, name: str) -> float | np.ndarray:
        """A factor, 1 for no name; those of "mamba" are by row."""
        of: dict[str, Any] = dict(zip(NAMES, map(np.float32, self.multipliers), strict=True))
        shared = self.groups * self.state
        if name == "mamba":
            return np.repeat(
                [of[x] for x in LISTED["ssm"]], [self.inner] * 2 + [shared] * 2 + [self.ssm_heads]
            )
        return of.get(name, np.float32(1))


@dataclass(frozen=True)
class Multiplied(Operation):
    """Rows with a factor on results in them, and in weights one on inputs, too."""

    after: str = ""
    before: str = ""

    def _factor(self, x: np.ndarray, config: FalconH1Config) -> Any:
        after, before = config.multiplier(self.after), config.multiplier(self.before)
        return np.reshape(after, (-1, *[1] * (x.ndim - 1))) * (before if x.ndim > 1 else 1)

    def to_gguf(self, x: np.ndarray, config: FalconH1Config) -> np.ndarray:
        return x * self._factor(x, config)

    def to_hf(self, x: np.ndarray, config: FalconH1Config) -> np.ndarray:
        return x / self._factor(x, config)

    def results(self, x: np.ndarray, config: FalconH1Config) -> np.ndarray:
        return x * config.multiplier(self.after)


def _linear(name: str, hf: str, shape: str, after: str = "", before: str = "") -> Linear:
    return gguf(name, hf=hf, op=Multiplied(after, before), shape=shape.split())


class Attention(nn.Attention):
    q: Linear = _linear("attn_q", "q_proj", "width q_width", "", "attention_in")
    k: Linear = _linear("attn_k", "k_proj", "width k_width", "key", "attention_in")
    v: Linear = _linear("attn_v", "v_proj", "width v_width", "", "attention_in")
    out: Linear = _linear("attn_output", "o_proj", "out_width width", "attention_out")


class Mamba(nn.Mamba2):
    into: Linear = _linear("ssm_in", "in_proj", "width projected", "mamba", "ssm_in")
    out: Linear = _linear("ssm_out", "out_proj", "inner width", "ssm_out")


class FeedForward(nn.GatedMLP):
    gate: Linear = _linear("ffn_gate", "gate_proj", "width ffn", "gate")
    down: Linear = _linear("ffn_down", "down_proj", "ffn width", "down")


class Layer(Module):
    norm: RMSNorm = gguf("attn_norm", hf="input_layernorm", shape=("width",))
    attn: Attention = gguf(hf="self_attn")
    mamba: Mamba = gguf(hf="mamba")
    ffn_norm: Tensor = gguf("ffn_norm", hf="pre_ff_layernorm.weight", shape=("width",))
    ffn: FeedForward = gguf(hf="feed_forward")

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        cache: tuple[LayerMemory, LayerStates],
        outputs: Tensor | None,
    ) -> Tensor:
        y = self.norm(x)
        y = self.attn(y, batch, cache[0]) + self.mamba(y, batch, cache[1])
        x, y = nn.keep_rows(outputs, x, y)
        x = x + y
        return x + self.ffn(x.rms_norm(self.ffn_norm, self.config.eps))


@register("falcon-h1", hf="FalconH1ForCausalLM")
class FalconH1(nn.Decoder):
    config: FalconH1Config
    embed: Embedding = gguf(
        "token_embd", hf="model.embed_tokens", op=Multiplied("", "embedding"), shape=("width", None)
    )
    layers: list[Layer]
    norm: RMSNorm = gguf("output_norm", hf="model.final_layernorm", shape=("width",))
    head: Linear = gguf(
        "output",
        "token_embd",
        hf=("lm_head", "model.embed_tokens"),
        op=Multiplied("lm_head"),
        shape=("width", None),
    )

    def caches(self) -> list[tuple[Causal, Recurrent]]:
        h = self.config
        return [(Causal(self.rotary.rope(RopeType.NEOX)), h.states)] * h.layers
