"""PaddleOCR-VL: ERNIE 4.5's blocks with positions of three components, and pages of any size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmodel import Context, Input, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError, PromptError
from ggmodel.image import composite, normalize, resize
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import Batch, Multimodal, MultimodalEmbedding, Pixels, VisionModel

from .config import PaddleOCRConfig
from .vision import Projector, Vision, page_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL.Image import Image


class Layer(nn.PreNormLayer):
    attn: nn.Attention


@register("paddleocr", hf="PaddleOCRVLForConditionalGeneration")
class PaddleOCR(nn.Decoder, VisionModel, text=("model", "model.language_model")):
    position_components = 4
    image_marker = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"
    image_data = {}
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

    def positions(self, inputs: Sequence[Input], before: np.ndarray) -> np.ndarray:
        return nn.grid_positions(inputs, before, lambda grid: grid)

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    largest_image = property(lambda m: (m.config.largest, m.config.largest))

    def preprocess(self, image: Image) -> Pixels:
        h: Any = self.config
        page = resize(composite(image), page_size(image.size, h), h.resample)
        return Pixels(normalize(page, h.image_mean, h.image_std)[None])

    def reference_pixels(self, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]) -> Pixels:
        """One page from its patches [n, 3, patch, patch], row by row."""
        (_, rows, columns), p = np.reshape(inputs["image_grid_thw"], -1).tolist(), self.config.patch
        x = np.reshape(inputs["pixel_values"], (rows, columns, 3, p, p)).transpose(2, 0, 3, 1, 4)
        page = np.ascontiguousarray(x, np.float32).reshape(1, 3, rows * p, columns * p)
        return Pixels(page, data)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """Pixels [1, 3, height, width]; the data is the grid of rows: one frame, rows, columns."""
        assert self.vision is not None and self.projector is not None
        h, shape = self.config, image.values.shape
        if len(shape) != 4 or shape[:2] != (1, 3):
            raise PromptError(f"pixels {list(shape)}; [1, 3, height, width] is needed")
        if any(n % h.cell or not n for n in shape[2:]):
            raise PromptError(
                f"a page of {shape[3]} × {shape[2]} pixels; both are multiples of {h.cell}"
            )
        rows, columns = (n // h.patch for n in shape[2:])
        merged = self.projector(self.vision(ctx, rows, columns), columns)
        return [Multimodal(merged, (1, rows // h.merge, columns // h.merge))]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        (one,) = image
        start, pad, end = (
            Input(self.token_id(f"<|IMAGE_{name}|>", default=default))
            for name, default in (("START", 101305), ("PLACEHOLDER", 100295), ("END", 101306))
        )
        return [start, Input(pad.token, one), *[pad] * (len(one) - 1), end]
