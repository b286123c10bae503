"""PaddleOCR-VL: ERNIE 4.5's blocks with positions of three components, and pages of any size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmodel import Context, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import Batch, Pixels

from .config import PaddleOCRConfig
from .pages import Pages
from .vision import Projector, Vision, page_size


class Layer(nn.PreNormLayer):
    attn: nn.Attention


@register("paddleocr", hf="PaddleOCRVLForConditionalGeneration")
class PaddleOCR(nn.Decoder, Pages, text=("model", "model.language_model")):
    image_marker = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"
    page_size = staticmethod(page_size)
    frame = {
        "<|IMAGE_START|>": 101305,
        "<|IMAGE_PLACEHOLDER|>": 100295,
        "<|IMAGE_END|>": 101306,
    }
    # Published, and read by nobody.
    ignore_hf = ("visual.vision_model.head.*", "*.packing_position_embedding.weight")
    clip = {
        "projector_type": "paddleocr",
        "vision.image_size": lambda h: math.isqrt(h.max_pixels),  # llama.cpp wants one
    }

    config: PaddleOCRConfig
    layers: list[Layer]
    vision: Vision | None = gguf("v", hf=("visual.vision_model", "model.visual.vision_model"))
    projector: Projector | None = gguf("mm", hf=("mlp_AR", "model.projector"))

    def validate(self) -> None:
        if self.vision is not None:
            places = self.vision.positions.weight.dim(1)
            if places != math.isqrt(places) ** 2:
                raise ConfigError(f"{places} learned positions of patches; they are a square")

    def caches(self) -> list[Causal]:
        h = self.config
        return [Causal(self.rotary.rope(RopeType.MROPE, h.sections))] * h.layers

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    def reference_pixels(self, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]) -> Pixels:
        """One page from its patches [n, 3, patch, patch], row by row."""
        (_, rows, columns), p = np.reshape(inputs["image_grid_thw"], -1).tolist(), self.config.patch
        x = np.reshape(inputs["pixel_values"], (rows, columns, 3, p, p)).transpose(2, 0, 3, 1, 4)
        page = np.ascontiguousarray(x, np.float32).reshape(1, 3, rows * p, columns * p)
        return Pixels(page, data)

    def encoded(self, ctx: Context, rows: int, columns: int) -> Tensor:
        assert self.vision is not None and self.projector is not None
        return self.projector(self.vision(ctx, rows, columns), columns)
