"""Mistral 3 and Ministral 3: llama's blocks, and Pixtral's tower for pictures of any size.

Pixtral itself, a LLaVA with this tower, is computed, loaded and written as one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmodel import DType, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError, PromptError
from ggmodel.kvcache import Causal
from ggmodel.ml import Context
from ggmodel.model import (
    Batch,
    Input,
    LayerMemory,
    Multimodal,
    MultimodalEmbedding,
    Pixels,
    Sources,
    Step,
    VisionModel,
)
from ggmodel.nn import Linear

from .config import Mistral3Config
from .vision import Projector, Vision, pixels_of

if TYPE_CHECKING:
    from PIL.Image import Image


class Attention(nn.PermutedAttention):
    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, temperature: Tensor | None
    ) -> Tensor:
        """temperature F32 [1, 1, n] multiplies the queries."""
        q, k, v = self.project(x)
        q, k = cache.rotate(q, batch.positions), cache.rotate(k, batch.positions)
        return self.attend(q if temperature is None else q * temperature, k, v, cache)


class Layer(nn.PreNormLayer):
    attn: Attention


# Prefixes in checkpoints: of text alone, as published with images, as transformers' modules.
TEXT = ("model", "language_model.model", "model.language_model")


@dataclass(frozen=True)
class RowBreak(Sources):
    """The row of [IMG_BREAK] in an embedding, if there is a tower; llama.cpp lays it into images
    itself."""

    name: str

    def names(self, config: Mistral3Config) -> list[str]:
        return [f"{self.name}.weight"] if config.vit_layers else []

    def shape(self, shapes: list[tuple[int, ...]], config: Mistral3Config) -> tuple[int, ...]:
        ((rows, width),) = shapes
        if not 0 <= config.row_break < rows:
            raise ConfigError(f"[IMG_BREAK] is token {config.row_break} of {rows}")
        return (width,)

    def join(self, parts: list[np.ndarray], config: Mistral3Config) -> np.ndarray:
        return parts[0][config.row_break]

    def split(self, x: np.ndarray, config: Mistral3Config) -> dict[str, Any]:
        return {f"{self.name}.weight": (config.row_break, x)}


HF = ("Mistral3ForConditionalGeneration", "Ministral3ForCausalLM", "LlavaForConditionalGeneration")
TOWER = ("vision_tower", "model.vision_tower")
PROJECTOR = ("multi_modal_projector", "model.multi_modal_projector")


# A text of llama is what llama.cpp's converter made of Pixtral and of Mistral 3 for long.
@register("mistral3", hf=HF, pairs={"llama": "pixtral"})
class Mistral3(nn.Decoder, VisionModel, text=TEXT):
    image_marker = "[IMG]"
    image_data = {}
    pair_tokens = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    clip = {
        "projector_type": "pixtral",
        "use_gelu": lambda h: h.vit_activation.startswith("gelu"),
        "use_silu": lambda h: h.vit_activation in ("silu", "swish") or None,
    }

    config: Mistral3Config
    row_break: Tensor | None = gguf(
        "v.token_embd.img_break", hf=tuple(RowBreak(f"{prefix}.embed_tokens") for prefix in TEXT)
    )
    layers: list[Layer]
    head: Linear = gguf(
        "output", "token_embd", hf=("lm_head", "language_model.lm_head"), shape=("width", None)
    )
    vision: Vision | None = gguf("v", hf=TOWER)
    projector: Projector | None = gguf("mm", hf=PROJECTOR)

    @classmethod
    def text_of(cls, hf: Mapping[str, Any]) -> str:
        return cls.architecture  # what it is written as now

    def validate(self) -> None:
        h = self.config
        if self.has_vision and h.side < h.unit:
            raise ConfigError(f"pictures of {h.side} pixels in patches of {h.unit}")

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers

    def temperature(self, step: Step) -> np.ndarray:
        """The factor on queries, [n, 1, 1]; it grows with each multiple of the original context
        (transformers, Ministral3Attention, after Llama 4)."""
        h = self.config
        floors = step.positions // (h.original_context or h.context)
        return (1 + h.temperature * np.log1p(floors))[:, None, None]

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x, temperature = batch.merge_embeddings(self.embed(batch.inputs)), None
        if self.config.temperature:
            temperature = batch.feed(self.temperature, DType.F32, 1, 1, batch.size)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs, temperature)
        return self.norm(x)

    largest_image = property(lambda m: (m.config.side, m.config.side))
    image_shape = property(lambda m: (1, 3, "height", "width"))

    def preprocess(self, image: Image) -> Pixels:
        return pixels_of(image, self.config)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """One tensor for each row of the picture."""
        assert self.vision is not None and self.projector is not None
        (height, width), unit = image.values.shape[2:], self.config.unit
        if height % unit or width % unit:
            raise PromptError(
                f"an image of {width} × {height} pixels; both are multiples of {unit}"
            )
        columns = width // unit
        rows = self.projector(self.vision(ctx, image), width // self.config.patch)
        return [Multimodal(row) for row in rows.chunk(1, columns)]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        names = (("[IMG]", 10), ("[IMG_BREAK]", self.config.row_break), ("[IMG_END]", 13))
        one, after, end = (Input(self.token_id(name, default=id)) for name, id in names)
        inputs: list[Input] = []
        for row in image:
            inputs += [Input(one.token, row), *[one] * (len(row) - 1), after]
        return [*inputs[:-1], end]

    @classmethod
    def stored_as(cls, hf: Mapping[str, Any], program: str | None = None) -> str:
        if "LlavaForConditionalGeneration" in hf.get("architectures", ()):
            kind = (hf.get("vision_config") or {}).get("model_type")
            if kind != "pixtral":
                raise ConfigError(
                    f"a LLaVA with the tower {kind!r:.40}; Pixtral's (model_type pixtral) is "
                    "supported"
                )
        return cls.architecture
