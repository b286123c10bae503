"""Idefics3 and SmolVLM: llama's blocks, pictures as tiles with text between them, and videos as
frames behind their times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggmodel import Tensor, gguf, nn, register
from ggmodel.errors import PromptError
from ggmodel.kvcache import Causal
from ggmodel.ml import Context
from ggmodel.model import Batch, Input, Multimodal, MultimodalEmbedding, Numbers, Pixels, Prepared

from .config import Idefics3Config
from .video import chosen_frames, frames_of, introduction, moment
from .vision import Projector, Vision, tiles_of

if TYPE_CHECKING:
    from PIL.Image import Image


class Layer(nn.PreNormLayer):
    attn: nn.PermutedAttention


FAKE, WHOLE = "<fake_token_around_image>", "<global-img>"  # tokens around an image's rows


HF = ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration")


@register("idefics3", hf=HF, pairs={"llama": "idefics3"})
class Idefics3(nn.Decoder, nn.VideoVision, text="model.text_model"):
    image_marker, video_marker = "<image>", "<video>"
    pair_tokens = ("<image>", FAKE)
    clip = {}

    config: Idefics3Config
    layers: list[Layer]
    vision: Vision | None = gguf("v", hf="model.vision_model")
    projector: Projector | None = gguf("mm.model", hf="model.connector.modality_projection")

    def caches(self) -> list[Causal]:
        return [Causal(self.rotary.rope())] * self.config.layers

    def embedded(self, batch: Batch) -> Tensor:
        return batch.merge_embeddings(self.embed(batch.inputs))

    # A square has the most tiles.
    largest_image = property(lambda m: (m.config.longest, m.config.longest))
    image_shape = property(lambda m: ("tiles", 3, m.config.side, m.config.side))

    image_data = {"grid": Numbers(int, (2,), least=0)}  # rows and columns of tiles

    def preprocess(self, image: Image) -> Pixels:
        return tiles_of(image, self.config)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """One tensor a tile. `image.data` has `grid`, (rows, columns) of tiles; (0, 0), the
        default, for a view of the whole alone."""
        rows, columns = grid = tuple(image.data.get("grid", (0, 0)))
        n = len(image.values)
        if n != rows * columns + 1:
            raise PromptError(
                f"{n} tiles for {rows} rows of {columns}; a view of the whole follows these"
            )
        return [Multimodal(tile, grid) for tile in self._tiles(ctx, n)]

    def _tiles(self, ctx: Context, n: int) -> list[Tensor]:
        """The rows of each of n tiles."""
        assert self.vision is not None and self.projector is not None
        tiles = self.projector(self.vision(ctx, n))
        return list(tiles.reshape(tiles.dim(0), -1).chunk(1, tiles.dim(1)))

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input | str]:
        """Rows of tiles end with a line break; a view of the whole follows."""
        _, columns = image[0].data
        inputs: list[Input | str] = []
        for i, tile in enumerate(image[:-1]):
            row, column = divmod(i, columns)
            inputs += self._inputs(f"<row_{row + 1}_col_{column + 1}>", tile)
            inputs += ["\n"] if column == columns - 1 else []
        inputs += ["\n"] if len(image) > 1 else []
        return [*inputs, *self._inputs(WHOLE, image[-1]), FAKE]

    def _inputs(self, name: str, tile: MultimodalEmbedding) -> list[Input | str]:
        one = Input(self.token_id(self.image_marker, default=0))
        return [FAKE + name, Input(one.token, tile), *[one] * (len(tile) - 1)]

    video_shape = property(lambda m: ("frames", 3, m.config.side, m.config.side))
    video_data = {"times": nn.video_times("frames"), "seconds": nn.video_times()}
    has_video = property(lambda m: m.config.video_max_frames > 0)

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
        room = (h.loaded_context or h.context) // max(1, h.rows)
        frames = nn.blank_frames(max(1, min(h.video_max_frames, room)), h.side)
        return Prepared(frames, {"times": [0.0] * len(frames), "seconds": 0.0})

    def encode_video(self, ctx: Context, video: Prepared) -> list[Multimodal]:
        """One tensor a frame, pixels [frames, 3, side, side]. The data has the `times` of frames,
        and the `seconds` of the whole video."""
        n, data = len(video.values), video.data
        times = data.get("times", ())
        if len(times) != n:
            raise PromptError(f"{n} frames at {len(times)} times; give one each")
        seconds = data.get("seconds", times[-1])
        tiles = zip(self._tiles(ctx, n), times, strict=True)
        return [Multimodal(tile, (time, seconds)) for tile, time in tiles]

    def video_inputs(self, video: list[MultimodalEmbedding]) -> list[Input | str]:
        """Each frame behind its time."""
        inputs: list[Input | str] = [introduction(len(video), video[0].data[1])]
        for frame in video:
            inputs += [moment(frame.data[0]), *self._inputs(WHOLE, frame), FAKE]
        return [*inputs, "\n\n"]
