"""InternVL 3 and 3.5: Qwen 2.5's blocks or Qwen 3's, pictures as tiles of one size, and videos as
numbered frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggmodel import Tensor, gguf, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import Context, RopeType
from ggmodel.model import Batch, Input, Multimodal, MultimodalEmbedding, Pixels, Prepared
from ggmodel.nn import Linear, RMSNorm

from .config import InternVLConfig
from .video import chosen_frames, frames_of
from .vision import Projector, Vision, tiles_of

if TYPE_CHECKING:
    from PIL.Image import Image


class Attention(nn.Attention):
    """Qwen 2.5's has biases, Qwen 3's norms."""

    q_norm: RMSNorm | None = gguf("attn_q_norm", hf="q_norm", shape=("head_dim",))
    k_norm: RMSNorm | None = gguf("attn_k_norm", hf="k_norm", shape=("head_dim",))


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn: nn.GatedMLP | nn.GatedExperts


PAIRS = dict.fromkeys(("qwen2", "qwen3", "qwen3moe"), "internvl")
TOWER = ("vision_tower", "model.vision_tower")
PROJECTOR = ("multi_modal_projector", "model.multi_modal_projector")


@register("internvl", hf="InternVLForConditionalGeneration", pairs=PAIRS)
class InternVL(nn.Decoder, nn.VideoVision, text=("language_model.model", "model.language_model")):
    image_marker, video_marker = "<IMG_CONTEXT>", "<video>"
    image_data, video_data = {}, {}
    pair_tokens = ("<IMG_CONTEXT>", "<img>", "</img>")
    clip = {}

    config: InternVLConfig
    layers: list[Layer]
    head: Linear = gguf(
        "output", "token_embd", hf=("lm_head", "language_model.lm_head"), shape=("width", None)
    )
    vision: Vision | None = gguf("v", hf=TOWER)
    projector: Projector | None = gguf("mm.model.mlp", hf=PROJECTOR)

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope(RopeType.NEOX))] * self.config.layers

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    @property
    def largest_image(self) -> tuple[int, int]:
        """One row of the most tiles."""
        h = self.config
        return h.side * h.most_tiles, h.side

    image_shape = property(lambda m: ("tiles", 3, m.config.side, m.config.side))
    video_shape = property(lambda m: ("frames", 3, m.config.side, m.config.side))

    def preprocess(self, image: Image) -> Pixels:
        return tiles_of(image, self.config)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """The rows of all tiles, tile by tile."""
        assert self.vision is not None and self.projector is not None
        tiles = self.projector(self.vision(ctx, len(image.values)))
        return [Multimodal(tiles.reshape(tiles.dim(0), -1))]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        (one,) = image
        return self._inputs(one)

    def _inputs(self, one: MultimodalEmbedding) -> list[Input]:
        named = ("<img>", 151665), (self.image_marker, 151667), ("</img>", 151666)
        begin, row, end = (Input(self.token_id(name, default=i)) for name, i in named)
        return [begin, Input(row.token, one), *[row] * (len(one) - 1), end]

    def video_frames(self, count: int, rate: float) -> np.ndarray:
        return chosen_frames(count, rate, self.config)

    def video_size(self, clip: nn.Clip) -> tuple[int, int]:
        return self.config.side, self.config.side

    def video_rows(self, clip: nn.Clip) -> int:
        return len(clip.frames) * self.config.rows

    def prepare_video(self, clip: nn.Clip) -> Prepared:
        return frames_of(clip, self.config)

    def largest_video(self) -> Prepared:
        h = self.config
        room = (h.loaded_context or h.context) // h.rows
        return Prepared(nn.blank_frames(max(1, min(h.video_max_frames or room, room)), h.side))

    def encode_video(self, ctx: Context, video: Prepared) -> list[Multimodal]:
        """One tensor a frame, pixels [frames, 3, side, side]."""
        (tiles,) = self.encode_multimodal(ctx, video)
        assert tiles.tensor is not None
        return [Multimodal(frame) for frame in tiles.tensor.chunk(1, self.config.rows)]

    def video_inputs(self, video: list[MultimodalEmbedding]) -> list[Input | str]:
        """Each frame behind its number."""
        inputs: list[Input | str] = []
        for i, frame in enumerate(video):
            inputs += ["\n" * (i > 0) + f"Frame{i + 1}: ", *self._inputs(frame)]
        return inputs
