"""Qwen 2-VL and 2.5-VL: Qwen 2 with pictures and videos of any size, whose rows have a position in
three components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmodel import Context, Input, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError, PromptError
from ggmodel.image import composite, normalize, resize, smart_size
from ggmodel.kvcache import Causal, Sliding
from ggmodel.ml import RopeType
from ggmodel.model import Batch, Multimodal, MultimodalEmbedding, Numbers, Prepared

from .config import Qwen2VLConfig
from .video import chosen_frames, patches_of, row_times
from .vision import Merger, Vision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL.Image import Image


class Layer(nn.PreNormLayer):
    attn: nn.Attention


GRID = Numbers(int, (3,), least=1)  # frames, rows and columns of patches


@register("qwen2vl", hf=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"))
class Qwen2VL(nn.Decoder, nn.VideoVision, text=("model", "model.language_model")):
    position_components = 4
    image_marker = "<|vision_start|><|image_pad|><|vision_end|>"
    video_marker = "<|vision_start|><|video_pad|><|vision_end|>"
    clip = {
        "projector_type": lambda h: "qwen2.5vl_merger" if h.full_every else "qwen2vl_merger",
        "vision.attention.layer_norm_epsilon": lambda h: h.vit_eps,
        "vision.image_size": 560,  # llama.cpp wants one
        "vision.n_wa_pattern": lambda h: h.full_every or None,
    }

    config: Qwen2VLConfig
    layers: list[Layer]
    vision: Vision | None = gguf("v", hf=("visual", "model.visual"))
    projector: Merger | None = gguf("mm", hf=("visual.merger.mlp", "model.visual.merger.mlp"))

    def validate(self) -> None:
        h = self.config
        if self.has_vision and h.full_every and h.window_side < 1:
            raise ConfigError(f"windows of {h.window_size} pixels for squares of {h.cell}")

    def caches(self) -> list[Causal | Sliding]:
        h = self.config
        return Sliding.where(h.local, h.window, self.rotary.rope(RopeType.MROPE, h.sections))

    def positions(self, inputs: Sequence[Input], before: np.ndarray) -> np.ndarray:
        return nn.grid_positions(inputs, before, lambda grid: grid)

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    largest_image = property(lambda m: (m.config.largest, m.config.largest))
    image_shape = property(lambda m: ("patches", 2 * m.config.patch_width))
    video_shape = image_shape

    image_data = {"image_grid_thw": GRID}
    video_data = {"video_grid_thw": GRID, "second_per_grid_ts": Numbers(float, least=0)}

    def preprocess(self, image: Image) -> Prepared:
        h: Any = self.config
        width, height = smart_size(image.size, h.cell, h.min_pixels, h.max_pixels)
        pixels = normalize(
            resize(composite(image), (width, height), h.resample), h.image_mean, h.image_std
        )
        twice = np.stack([pixels, pixels])[None]  # two frames alike
        return Prepared(
            patches_of(twice, h), {"image_grid_thw": (1, height // h.patch, width // h.patch)}
        )

    def reference_pixels(
        self, inputs: Mapping[str, np.ndarray], data: Mapping[str, object]
    ) -> Prepared:
        return Prepared(np.asarray(inputs["pixel_values"], np.float32), data)

    def encode_multimodal(self, ctx: Context, image: Prepared) -> list[Multimodal]:
        """Its data is the grid of rows: frames, rows, columns."""
        return self._encoded(ctx, image, "image_grid_thw")

    def _encoded(self, ctx: Context, item: Prepared, key: str) -> list[Multimodal]:
        assert self.vision is not None and self.projector is not None
        h, grid = self.config, item.data.get(key, ())
        n, wide = math.prod(grid), 2 * h.patch_width
        if len(grid) != 3 or any(side % h.merge for side in grid[1:]):
            squares = f"rows and columns of patches in multiples of {h.merge}"
            raise PromptError(f"{key} is {list(grid)}; give frames, {squares}")
        if item.values.shape != (n, wide):
            raise PromptError(
                f"pixels {list(item.values.shape)} for a grid of {list(grid)} patches; "
                f"[{n}, {wide}] is needed"
            )
        frames, rows, columns = grid
        merged = self.projector(self.vision(ctx, (frames, rows, columns)))
        times = row_times(frames, item.data, h) if "video" in key else frames
        return [Multimodal(merged, (times, rows // h.merge, columns // h.merge))]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        return self._inputs(image, "image_pad", 151655)

    def _inputs(self, item: list[MultimodalEmbedding], pad: str, usual: int) -> list[Input]:
        (one,) = item
        start, pad_input, end = (
            Input(self.token_id(f"<|{name}|>", default=default))
            for name, default in (("vision_start", 151652), (pad, usual), ("vision_end", 151653))
        )
        rest = [pad_input] * (len(one) - 1)
        return [start, Input(pad_input.token, one), *rest, end]

    def video_frames(self, count: int, rate: float) -> np.ndarray:
        return chosen_frames(count, rate, self.config)

    def video_size(self, clip: nn.Clip) -> tuple[int, int]:
        h = self.config
        return smart_size(clip.size, h.cell, h.video_least_pixels, h.video_most_pixels)

    def prepare_video(self, clip: nn.Clip) -> Prepared:
        pairs = nn.in_pairs(clip, self.video_size(clip), self.config)
        return Prepared(patches_of(pairs, self.config), self._grid(pairs, 2 / clip.rate))

    def _grid(self, pairs: np.ndarray, seconds: float) -> dict[str, Any]:
        rows, columns = (n // self.config.patch for n in pairs.shape[3:])
        return {"video_grid_thw": (len(pairs), rows, columns), "second_per_grid_ts": seconds}

    def largest_video(self) -> Prepared:
        h = self.config
        pairs = self.largest_pairs(h.video_most_pixels, h.video_max_frames // 2)
        data = self._grid(pairs, 1)
        wide = 2 * h.patch_width
        nothing = np.broadcast_to(pairs[0, 0, 0, 0, 0], (pairs.size // wide, wide))
        return Prepared(nothing, data)

    def encode_video(self, ctx: Context, video: Prepared) -> list[Multimodal]:
        """Its data is the grid of rows, too; instead of frames it has their times in positions
        where a second has some."""
        return self._encoded(ctx, video, "video_grid_thw")

    def video_inputs(self, video: list[MultimodalEmbedding]) -> list[Input | str]:
        return [*self._inputs(video, "video_pad", 151656)]
