"""LFM2-VL: LFM2, and pictures whole or as tiles beside a view of the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmodel import Tensor, gguf, register
from ggmodel.errors import ConfigError, PromptError
from ggmodel.ml import Context
from ggmodel.model import (
    Batch,
    Input,
    Multimodal,
    MultimodalEmbedding,
    Numbers,
    Pixels,
    VisionModel,
)
from ggmodel.models.lfm2.model import LFM2, Layer
from ggmodel.nn import Embedding, RMSNorm

from .config import Lfm2VlConfig
from .vision import Projector, Vision, tiles_of

if TYPE_CHECKING:
    from PIL.Image import Image

PAIRS = {"lfm2": "lfm2", "lfm2moe": "lfm2"}
TEXT = "model.language_model"
TOWER = ("model.vision_tower.vision_model", "model.vision_tower")
# Ids of published vocabularies, which name tiles of up to ten rows and columns.
IMAGE, FIRST_TILE, WHOLE, START, END = 396, 397, 497, 498, 499


@register("lfm2vl", hf="Lfm2VlForConditionalGeneration", pairs=PAIRS)
class LFM2VL(LFM2, VisionModel):
    image_marker = "<image>"
    pair_tokens = ("<image>", "<|image_start|>", "<|image_end|>")
    image_data = {
        "grid": Numbers(int, (2,), least=1),  # rows and columns of tiles
        "shapes": Numbers(int, ("tiles", 2), least=1),  # rows and columns of patches in each
    }
    ignore_hf = ("*vision_tower.*head.*",)
    clip = {"vision.image_size": 256}  # llama.cpp wants one

    config: Lfm2VlConfig
    embed: Embedding = gguf("token_embd", hf=f"{TEXT}.embed_tokens", shape=("width", None))
    layers: list[Layer] = gguf("blk", hf=f"{TEXT}.layers", n="layers")
    norm: RMSNorm = gguf("token_embd_norm", hf=f"{TEXT}.embedding_norm", shape=("width",))
    vision: Vision | None = gguf("v", hf=TOWER)
    projector: Projector | None = gguf("mm", hf="model.multi_modal_projector")

    def validate(self) -> None:
        super().validate()
        if self.vision is not None:
            places = self.vision.positions.weight.dim(1)
            if places != math.isqrt(places) ** 2:
                raise ConfigError(f"{places} learned positions of patches; they are a square")

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    @property
    def largest_image(self) -> tuple[int, int]:
        """One row of the most tiles that a context takes, or a square that is seen whole."""
        h = self.config
        room = h.loaded_context or h.context
        tiles = min(h.most_tiles, room // (h.side // h.cell) ** 2)
        if tiles > 1:
            return h.side * tiles, h.side
        side = max(1, math.isqrt(min(h.most_rows, room))) * h.cell
        return side, side

    image_shape = property(lambda m: ("patches", m.config.patch_width))

    def preprocess(self, image: Image) -> Pixels:
        return tiles_of(image, self.config)

    def reference_pixels(self, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]) -> Pixels:
        """The patches without those that a tile is padded with, each of colours by pixel."""
        p = self.config.patch
        tiles = zip(inputs["pixel_values"], inputs["spatial_shapes"].tolist(), strict=True)
        patches = np.concatenate([tile[: rows * columns] for tile, (rows, columns) in tiles])
        values = patches.reshape(-1, p, p, 3).transpose(0, 3, 1, 2).reshape(len(patches), -1)
        return Pixels(np.ascontiguousarray(values, np.float32), data)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """One tensor a tile, of patches [patches, 3 · patch²] tile by tile. `image.data` has the
        `grid` of tiles, (1, 1) by default, and the `shapes` of all tiles and of a view of the whole
        behind several."""
        assert self.vision is not None and self.projector is not None
        shapes, grid = self._shapes(image), tuple(image.data.get("grid", (1, 1)))
        parts: list[Multimodal] = []
        first = 0
        for (rows, columns), alike in groupby(shapes):
            count = len(list(alike))
            seen = self.vision(ctx, first, count, rows, columns)
            tiles = self.projector(seen, columns)
            tiles = tiles.reshape(tiles.dim(0), -1).chunk(1, tiles.dim(1))
            parts += [Multimodal(tile, grid) for tile in tiles]
            first += count * rows * columns
        return parts

    def _shapes(self, image: Pixels) -> list[tuple[int, int]]:
        shapes, grid = image.data.get("shapes", ()), image.data.get("grid", (1, 1))
        tiles, merge = math.prod(grid), self.config.merge
        if len(shapes) not in (tiles, tiles + (tiles > 1)):
            raise PromptError(
                f"the shapes of {len(shapes)} tiles for {grid[0]} rows of {grid[1]}; a view of the "
                "whole may follow several"
            )
        if any(n % merge for shape in shapes for n in shape):
            raise PromptError(f"tiles of {list(shapes)!r:.80} patches; give multiples of {merge}")
        if (n := sum(map(math.prod, shapes))) != len(image.values):
            raise PromptError(f"{len(image.values)} patches for tiles of {n}")
        return [*shapes]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        """Several tiles stand behind their names."""
        (rows, columns), pad = image[0].data, self.token_id("<image>", default=IMAGE)
        inputs = [Input(self.token_id("<|image_start|>", default=START))]
        for i, tile in enumerate(image):
            row, column = divmod(i, columns)
            name, usual = f"<|img_row_{row + 1}_col_{column + 1}|>", FIRST_TILE + 10 * row + column
            if row == rows:
                name, usual = "<|img_thumbnail|>", WHOLE
            named = len(image) > 1
            inputs += [Input(self.token_id(name, default=usual))] if named else []
            inputs += tile.inputs(pad)
        return [*inputs, Input(self.token_id("<|image_end|>", default=END))]
