"""GLM-OCR: GLM 4's blocks with positions of three components, and pages of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmodel import Context, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Causal
from ggmodel.ml import RopeType
from ggmodel.model import Batch, Operation, Pixels
from ggmodel.models.glm import glm4
from ggmodel.models.paddleocr.pages import Pages
from ggmodel.nn import Linear

from .config import GlmOcrConfig
from .vision import Projector, Vision, page_size


@dataclass(frozen=True)
class Halves(Operation):
    """Rows from neighbours that turn together, as checkpoints have them, to halves of the rotated
    part of each head, as ggml turns them by positions of several components."""

    heads: str

    def to_gguf(self, x: np.ndarray, config: GlmOcrConfig) -> np.ndarray:
        return x[self._order(len(x), config)]

    def to_hf(self, x: np.ndarray, config: GlmOcrConfig) -> np.ndarray:
        return x[np.argsort(self._order(len(x), config))]

    def results(self, x: np.ndarray, config: GlmOcrConfig) -> np.ndarray:
        return x[..., self._order(x.shape[-1], config)]

    def _order(self, n: int, h: GlmOcrConfig) -> np.ndarray:
        heads, turned = getattr(h, self.heads), h.rope_dims
        if heads * h.head_dim != n or not 0 <= turned <= h.head_dim:
            raise ConfigError(f"{n} rows are not {heads} heads of {h.head_dim}, {turned} rotated")
        rows = np.arange(n).reshape(heads, -1)
        pairs = [rows[:, i:turned:2] for i in (0, 1)]
        return np.concatenate([*pairs, rows[:, turned:]], axis=1).reshape(-1)


class Attention(nn.Attention):
    q: Linear = gguf("attn_q", hf="q_proj", op=Halves("heads"), shape=("width", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", op=Halves("kv_heads"), shape=("width", "k_width"))


class Layer(glm4.Layer):
    attn: Attention


@register("glm_ocr", hf="GlmOcrForConditionalGeneration", pairs={"glm4": "glm4v"})
class GlmOcr(nn.DraftingDecoder, Pages, text="model.language_model"):
    image_marker = "<|begin_of_image|><|image|><|end_of_image|>"
    page_size = staticmethod(page_size)
    frame = {
        "<|begin_of_image|>": 59256,
        "<|image|>": 59280,
        "<|end_of_image|>": 59257,
    }
    clip = {
        "use_gelu": lambda h: h.vit_activation.startswith("gelu"),
        "use_silu": lambda h: h.vit_activation in ("silu", "swish") or None,
        "vision.image_size": 336,  # llama.cpp wants one
    }

    config: GlmOcrConfig
    layers: list[Layer]
    vision: Vision | None = gguf("v", hf="model.visual")
    projector: Projector | None = gguf("mm", hf="model.visual")

    @classmethod
    def text_of(cls, hf: Mapping[str, Any]) -> str:
        return "glm4"

    def caches(self) -> list[Causal]:
        h = self.config
        return [Causal(self.rotary.rope(RopeType.MROPE, h.sections))] * h.layers

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    def reference_pixels(self, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]) -> Pixels:
        """One page from its patches [n, 3 · 2 · patch²], squares of them one after another."""
        (_, rows, columns), h = np.reshape(inputs["image_grid_thw"], -1).tolist(), self.config
        down, across, p = rows // h.merge, columns // h.merge, h.patch
        x = np.reshape(inputs["pixel_values"], (down, across, h.merge, h.merge, 3, 2, p, p))
        x = x[..., 0, :, :].transpose(4, 0, 2, 5, 1, 3, 6)
        page = np.ascontiguousarray(x, np.float32).reshape(1, 3, rows * p, columns * p)
        return Pixels(page, data)

    def encoded(self, ctx: Context, rows: int, columns: int) -> Tensor:
        assert self.vision is not None and self.projector is not None
        return self.projector(self.vision(ctx, rows, columns))
