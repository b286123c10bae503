"""Qwen3-VL, dense and with experts: qwen3 with positions of three components, and pictures whose
rows enter the first layers, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmodel import Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal
from ggmodel.ml import Context, RopeType
from ggmodel.model import Batch, Sources
from ggmodel.nn import ExpertLinear

SECTIONS = [24, 20, 20, 0]  # of transformers' rope, where a config says nothing


def _stacked(hf: Mapping[str, Any]) -> int:
    return len(hf["vision_config"].get("deepstack_visual_indexes", []))


class Qwen3VLConfig(nn.DecoderConfig, nn.GridConfig):
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=1e-6)
    context: int = kv("context_length", hf="max_position_embeddings", default=128000)
    sections: list = kv("rope.dimension_sections", hf=lambda hf: nn.rope_sections(hf) or SECTIONS)
    # Layers of the text that take rows of the tower's layers.
    taken: int = kv("n_deepstack_layers", hf=_stacked, default=0)


class Qwen3VLMoeConfig(Qwen3VLConfig):
    # The tensors tell which layers have experts.
    fixed = {"mlp_only_layers": ..., "decoder_sparse_step": ...}

    experts: int = kv("expert_count", hf=("num_experts", "num_local_experts"))
    experts_used: int = kv("expert_used_count", hf="num_experts_per_tok")
    expert_ffn: int = kv("expert_feed_forward_length", hf="moe_intermediate_size")


@dataclass(frozen=True)
class Rows(Sources):
    """Rows of all experts, [experts, out, in]. Published tensors have [experts, in, out]; a tensor
    is turned where that alone fits, as transformers does.

    Args:
        index, parts: which of how many parts that follow one another.
        out, into: the config attributes with the sizes of a part.
    """

    name: str
    index: int
    parts: int
    out: str
    into: str

    def names(self, config: Qwen3VLMoeConfig) -> list[str]:
        return [self.name]

    def shape(self, shapes: list[tuple[int, ...]], config: Qwen3VLMoeConfig) -> tuple[int, ...]:
        return self.join([np.broadcast_to(np.float32(0), shapes[0])], config).shape

    def join(self, parts: list[np.ndarray], config: Qwen3VLMoeConfig) -> np.ndarray:
        (x,), size = parts, getattr(config, self.out)
        shape = self.parts * size, getattr(config, self.into)
        if x.shape[1:] not in (shape, shape[::-1]):
            raise ConfigError(f"{self.name} is {list(x.shape)}, not [experts, {shape}]")
        x = x if x.shape[1:] == shape else x.swapaxes(1, 2)
        return x[:, self.index * size : (self.index + 1) * size]

    def split(self, x: np.ndarray, config: Qwen3VLMoeConfig) -> dict[str, Any]:
        size = getattr(config, self.out)
        return {self.name: ((slice(None), slice(self.index * size, (self.index + 1) * size)), x)}


class Gate(ExpertLinear):
    weight = gguf("weight", hf=Rows("gate_up_proj", 0, 2, "expert_ffn", "width"))


class Up(ExpertLinear):
    weight = gguf("weight", hf=Rows("gate_up_proj", 1, 2, "expert_ffn", "width"))


class Down(ExpertLinear):
    weight = gguf("weight", hf=Rows("down_proj", 0, 1, "width", "expert_ffn"))


class Experts(nn.GatedExperts):
    gate: Gate = gguf("ffn_gate_exps", hf="experts", shape=("width", "expert_ffn", "experts"))
    up: Up = gguf("ffn_up_exps", hf="experts", shape=("width", "expert_ffn", "experts"))
    down: Down = gguf("ffn_down_exps", hf="experts", shape=("expert_ffn", "width", "experts"))


class Layer(nn.PreNormLayer):
    attn: nn.NormedAttention


class ExpertLayer(nn.PreNormLayer):
    attn: nn.NormedAttention
    ffn: nn.GatedMLP | Experts


@register("qwen3vl", hf="Qwen3VLForConditionalGeneration")
class Qwen3VL(nn.Decoder, nn.GridVision, text="model.language_model"):
    frame = {
        "<|vision_start|>": 151652,
        "<|image_pad|>": 151655,
        "<|video_pad|>": 151656,
        "<|vision_end|>": 151653,
    }

    config: Qwen3VLConfig
    layers: list[Layer]

    def validate(self) -> None:
        h = self.config
        if not max(len(h.stacked), h.taken) < h.layers:
            raise ConfigError(
                f"rows of {max(len(h.stacked), h.taken)} layers of the tower for a text of "
                f"{h.layers} layers, the last of which takes none"
            )

    def caches(self) -> list[Causal]:
        h = self.config
        return [Causal(self.rotary.rope(RopeType.IMROPE, h.sections))] * h.layers

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x = batch.merge_embeddings(self.embed(batch.inputs))
        each = batch.through(self.layers)
        for i, (layer, cache, outputs) in enumerate(each):
            x = layer(x, batch, cache, outputs)
            x = batch.add(x, i) if i < len(self.config.stacked) else x
        return self.norm(x)


@register("qwen3vlmoe", hf="Qwen3VLMoeForConditionalGeneration")
class Qwen3VLMoe(Qwen3VL):
    config: Qwen3VLMoeConfig
    layers: list[ExpertLayer]
