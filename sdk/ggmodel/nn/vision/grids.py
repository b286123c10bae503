"""Qwen3-VL's tower, which Qwen 3.5 has as well: pictures of any size and pairs of frames of videos,
whose patches become rows of the text in squares.

A checkpoint's picture is a grid of patches. Their positions are learned for a grid of one size, and
interpolated for others; queries and keys rotate by row and column. The rows of some layers go into
the text's first layers (deepstack, arXiv 2406.04334).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, PromptError
from ...image import normalize, resize, smart_size, unfold
from ...ml import Context, DType, RopeType, Tensor
from ...model.module import Module, gguf
from ...model.multimodal import Input, Multimodal, MultimodalEmbedding, Pixels, Prepared
from ...model.walk import LONGEST
from ..layers import Embedding, LayerNorm, Linear, activate, activation
from .config import resample, vision_kv
from .tower import FramePatchEmbedding, attention_in_blocks, grid_positions
from .videos import (
    PAIR,
    Clip,
    VideoConfig,
    VideoVision,
    film_size,
    in_pairs,
    pair_times,
    video_times,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_EPS = 1e-6  # of all norms but the text's; configs do not have it
_BASE = 10000.0  # of the frequencies, in all published towers
_TANH = "gelu_pytorch_tanh"
_MOST = 1 << 24


def _tower(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    return hf.get("vision_config") or {}


def _side(hf: Mapping[str, Any]) -> int | None:
    """The side of the picture whose patches have a learned position each."""
    places, patch = (_tower(hf).get(key) for key in ("num_position_embeddings", "patch_size"))
    return None if places is None or patch is None else math.isqrt(places) * patch


def _stacked(hf: Mapping[str, Any]) -> list[bool] | None:
    """Layer of the tower → whether its rows go into the text, in files; none for no tower."""
    layers = _tower(hf).get("depth")
    if layers is None:
        return None
    if not isinstance(layers, int) or not 0 <= layers <= LONGEST:
        raise ConfigError(f"depth is {layers!r:.40}; towers have at most {LONGEST} layers")
    chosen = set(_tower(hf).get("deepstack_visual_indexes") or ())
    return [i in chosen for i in range(layers)]


def _merger_order(hf: Mapping[str, Any]) -> list[int] | None:
    """The layers of a checkpoint's mergers, if their order is another one than that of layers."""
    layers = _tower(hf).get("deepstack_visual_indexes") or []
    return None if layers == sorted(layers) else layers


class GridConfig(VideoConfig):
    """The hyperparameters of a model with such a tower."""

    fixed = {
        "rope_parameters.mrope_interleaved": True,
        "vision_config.out_hidden_size": lambda hf: hf["hidden_size"],
        "vision_config.temporal_patch_size": PAIR,
        "vision_config.in_channels": 3,
        "preprocessor:temporal_patch_size": PAIR,
        "preprocessor:patch_size": lambda hf: _tower(hf).get("patch_size"),
        "preprocessor:merge_size": lambda hf: _tower(hf).get("spatial_merge_size"),
        "video:temporal_patch_size": PAIR,
        "video:patch_size": lambda hf: _tower(hf).get("patch_size"),
        "video:merge_size": lambda hf: _tower(hf).get("spatial_merge_size"),
        "video:do_sample_frames": True,
        "video:cap_pixels_per_frame": None,
        "video:max_video_tokens": ...,  # of that cap
        "image_token_id": ...,  # the vocabulary tells
        "video_token_id": ...,
        "vision_start_token_id": ...,
        "vision_end_token_id": ...,
    }

    vit_layers: int = vision_kv("block_count", "depth")
    vit_width: int = vision_kv("embedding_length", "hidden_size")
    vit_ffn: int = vision_kv("feed_forward_length", "intermediate_size")
    vit_heads: int = vision_kv("attention.head_count", "num_heads")
    vit_eps: float = vision_kv("attention.layer_norm_epsilon", (), _EPS)
    vit_activation: str = activation(_TANH, "vision_config.hidden_act", "vision.hidden_activation")
    patch: int = vision_kv("patch_size", "patch_size", 16, least=1)
    merge: int = vision_kv("spatial_merge_size", "spatial_merge_size", 2, least=1)
    side: int = vision_kv("image_size", _side)
    deepstack: list = vision_kv("is_deepstack_layers", _stacked, [])
    merger_order: list = vision_kv("deepstack_merger_order", _merger_order, [])
    least_pixels: int = vision_kv(
        "image_min_pixels", "preprocessor:size.shortest_edge", 1 << 16, least=1, most="most_pixels"
    )
    most_pixels: int = vision_kv(
        "image_max_pixels", "preprocessor:size.longest_edge", _MOST, least=1
    )
    # All frames together have so many. The usual values are those of published checkpoints.
    video_least_pixels: int = vision_kv(
        "video_min_pixels",
        "video:size.shortest_edge",
        lambda h: 4 * h.cell**2,
        least=1,
        most="video_most_pixels",
    )
    video_most_pixels: int = vision_kv(
        "video_max_pixels", "video:size.longest_edge", lambda h: 24576 * h.cell**2, least=1
    )
    resample: str = resample("bicubic")
    cell = property(lambda h: h.patch * h.merge)  # the side of a row's pixels
    places = property(lambda h: (h.side // h.patch) ** 2)
    square = property(lambda h: h.vit_width * h.merge**2)
    vit_qkv = property(lambda h: 3 * h.vit_width)
    # The layers of the tower whose rows go into the text, in the order of a checkpoint's mergers.
    stacked = property(lambda h: h.merger_order or h._flagged)
    _flagged = property(lambda h: [i for i, flag in enumerate(h.deepstack) if flag])

    def __init__(self, **values: Any):
        super().__init__(**values)
        if self.merger_order and sorted(self.merger_order) != self._flagged:
            raise ConfigError(
                f"mergers of the layers {self.merger_order} of the tower, {self._flagged} of which "
                "go into the text"
            )


class _Layer(Module):
    norm1: LayerNorm = gguf("ln1", hf="norm1", shape=("vit_width",))
    qkv: Linear = gguf("attn_qkv", hf="attn.qkv", shape=("vit_width", "vit_qkv"))
    out: Linear = gguf("attn_out", hf="attn.proj", shape=("vit_width", "vit_width"))
    norm2: LayerNorm = gguf("ln2", hf="norm2", shape=("vit_width",))
    up: Linear = gguf("ffn_up", hf="mlp.linear_fc1", shape=("vit_width", "vit_ffn"))
    down: Linear = gguf("ffn_down", hf="mlp.linear_fc2", shape=("vit_ffn", "vit_width"))

    def forward(self, x: Tensor, places: Tensor, blocks: Sequence[int]) -> Tensor:
        """x [width, n]; a patch sees those of its block."""
        h = self.config
        dims = h.vit_width // h.vit_heads
        heads = self.qkv(self.norm1(x, h.vit_eps)).reshape(dims, 3 * h.vit_heads, -1)
        q, k, v = heads.chunk(1, h.vit_heads)
        q, k = (
            s.rope(places, dims // 2, _BASE, type=RopeType.VISION, sections=(dims // 4,) * 4)
            for s in (q, k)
        )
        y = attention_in_blocks(q, k, v, blocks, scale=dims**-0.5)
        x = x + self.out(y.reshape(h.vit_width, -1))
        y = activate(h.vit_activation, self.up(self.norm2(x, h.vit_eps)))
        return x + self.down(y)


class GridMerger(Module):
    """Squares of patches as rows of the text."""

    first: Linear = gguf("0", hf="linear_fc1", shape=("square", "square"))
    second: Linear = gguf("2", hf="linear_fc2", shape=("square", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """[square, rows] → [width, rows]."""
        return self.second(self.first(x).gelu_erf())


class _Stacked(GridMerger):
    """The same of a layer within the tower."""

    norm: LayerNorm = gguf("norm", hf="norm", shape=("square",))
    first: Linear = gguf("fc1", hf="linear_fc1", shape=("square", "square"))
    second: Linear = gguf("fc2", hf="linear_fc2", shape=("square", "width"))

    def forward(self, x: Tensor) -> Tensor:
        h = self.config
        return super().forward(self.norm(x.reshape(h.square, -1), h.vit_eps))


class GridTower(Module):
    """A vision tower whose positions are interpolated to the grid of a picture of any size."""

    patches: FramePatchEmbedding = gguf(
        "patch_embd", hf="patch_embed.proj", shape=("patch", "patch", 3, "vit_width")
    )
    positions: Embedding = gguf("position_embd", hf="pos_embed", shape=("vit_width", "places"))
    layers: list[_Layer] = gguf("blk", hf="blocks", n="vit_layers")
    norm: LayerNorm = gguf("post_ln", hf="merger.norm", shape=("vit_width",))
    mergers: list[_Stacked] = gguf("deepstack", hf="deepstack_merger_list", numbers="stacked")

    def forward(
        self, ctx: Context, frames: Sequence[Tensor], rows: int, columns: int
    ) -> tuple[Tensor, list[Tensor]]:
        """
        Args:
            frames: two, the patches of each F32 [3 · patch², rows · columns · pairs], those of a
                square one after another. The patches of a pair see each other.

        Returns:
            squares of patches [square, rows · columns · pairs / merge²], and rows of the text for
            each of its first layers.
        """
        h, n = self.config, rows * columns
        x, parts = self.patches(*frames), []
        pairs = x.dim(1) // n
        for ids, weights in _taps(rows, columns, math.isqrt(h.places), h.merge):
            ids, weights = np.tile(ids, pairs), np.tile(weights, pairs)[:, None]
            positions = self.positions(ctx.constant(ids))
            x = x + positions * ctx.constant(weights, DType.F32)
        at = np.tile(_in_squares(np.indices((rows, columns)), h.merge), (2, pairs)).reshape(-1)
        places = ctx.constant(at)
        for i, layer in enumerate(self.layers):
            x = layer(x, places, [n] * pairs)
            if i in h.stacked:
                parts.append(self.mergers[h.stacked.index(i)](x))
        return self.norm(x, h.vit_eps).reshape(h.square, -1), parts


def _in_squares(x: NDArray[Any], merge: int) -> NDArray[Any]:
    """[k, rows, columns] → [k, rows · columns], squares of merge × merge one after another."""
    k, rows, columns = x.shape
    x = x.reshape(k, rows // merge, merge, columns // merge, merge)
    return np.ascontiguousarray(x.swapaxes(2, 3).reshape(k, -1), np.int32)


def _taps(
    rows: int, columns: int, side: int, merge: int
) -> list[tuple[NDArray[np.int32], NDArray[np.float32]]]:
    """The four learned positions around each patch, and their weights: the corners of both grids
    meet (transformers, vision_utils, `get_vision_interpolation_indices_and_weights`)."""

    def axis(n: int) -> tuple[NDArray[Any], NDArray[Any]]:
        at = np.linspace(0, side - 1, n, dtype=np.float32)
        low = np.minimum(at.astype(np.int32), max(side - 2, 0))
        return low, at - low

    at = _in_squares(np.indices((rows, columns)), merge)
    (top, down), (left, right) = axis(rows), axis(columns)
    taps = []
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = (np.minimum(x + n, side - 1) for x, n in ((top, i), (left, j)))
        weight = np.abs(1 - i - down)[at[0]] * np.abs(1 - j - right)[at[1]]
        ids = row[at[0]] * side + column[at[1]]
        taps.append((ids.astype(np.int32), weight.astype(np.float32)))
    return taps


class GridVision(VideoVision):
    """The way from pictures and videos to inputs with positions, for models with such a tower. The
    config is a `GridConfig`.

    Attributes:
        frame: the tokens before and after a picture, and the placeholders of pictures and videos,
            with their usual ids.
    """

    position_components = 4
    image_marker = "<|vision_start|><|image_pad|><|vision_end|>"
    video_marker = "<|video_pad|>"
    image_data = {}
    clip = {"projector_type": "qwen3vl_merger"}
    frame: ClassVar[Mapping[str, int]]

    vision: GridTower | None = gguf("v", hf=("model.visual", "visual"))
    projector: GridMerger | None = gguf("mm", hf=("model.visual.merger", "visual.merger"))

    def positions(self, inputs: Sequence[Input], before: np.ndarray) -> np.ndarray:
        return grid_positions(inputs, before, lambda data: data[:3])

    @property
    def largest_image(self) -> tuple[int, int]:
        """A picture's rows fit a context."""
        h = self.config
        rows = min(h.most_pixels // h.cell**2, h.loaded_context or h.context)
        side = max(1, math.isqrt(rows)) * h.cell
        return side, side

    def preprocess(self, image: Image) -> Prepared:
        h = self.config
        size = smart_size(image.size, h.cell, h.least_pixels, h.most_pixels)
        picture = resize(image.convert("RGB"), size, h.resample)
        return Prepared(normalize(picture, h.image_mean, h.image_std)[None])

    def reference_pixels(self, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]) -> Pixels:
        """One picture from its patches [n, 3 · 2 · patch²], those of a square together."""
        (pair,) = self._pairs(inputs["pixel_values"], inputs["image_grid_thw"])
        return Prepared(np.ascontiguousarray(pair[:1], np.float32), data)

    def reference_item(
        self, kind: str, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]
    ) -> Prepared:
        if kind != "video":
            return super().reference_item(kind, inputs, data)
        pairs = self._pairs(inputs["pixel_values_videos"], inputs["video_grid_thw"])
        return Prepared(np.ascontiguousarray(pairs, np.float32), data)

    def _pairs(self, patches: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """[pairs, 2, 3, height, width]."""
        (n, rows, columns), p, m = grid.reshape(-1).tolist(), self.config.patch, self.config.merge
        x = patches.reshape(n, rows // m, columns // m, m, m, 3, PAIR, p, p)
        x = x.transpose(0, 6, 5, 1, 3, 7, 2, 4, 8)
        return x.reshape(n, PAIR, 3, rows * p, columns * p)

    def encode_multimodal(self, ctx: Context, image: Prepared) -> list[Multimodal]:
        """Pixels [1 or 2, 3, height, width]: a picture, or two frames. The data is the grid of
        rows: frames, rows and columns."""
        shape = image.values.shape
        if len(shape) != 4 or shape[1] != 3 or not 1 <= shape[0] <= PAIR:
            raise PromptError(f"pixels {list(shape)}; [1 or {PAIR}, 3, height, width] is needed")
        return self._encoded(ctx, shape[2:], shape[0], lambda item, i: item.values[i : i + 1])

    def _encoded(
        self, ctx: Context, size: Sequence[int], frames: int, planes: Any, pairs: int = 1
    ) -> list[Multimodal]:
        """Rows of each pair of frames of a size (height, width).

        Args:
            frames: of a pair; 1 if both are the same.
            planes: an item and the number of a frame → its pixels in all pairs, [pairs, 3, …].
        """
        assert self.vision is not None and self.projector is not None
        h = self.config
        if any(n % h.cell or not n for n in size):
            raise PromptError(
                f"an image of {size[1]} × {size[0]} pixels; both are multiples of {h.cell}"
            )
        rows, columns = (n // h.patch for n in size)
        patches = [
            ctx.feed(
                lambda item, i=i: unfold(planes(item, i), h.patch, h.merge),
                *(DType.F32, 3 * h.patch**2, rows * columns, pairs),
            ).reshape(-1, rows * columns * pairs)
            for i in range(frames)
        ]
        encoded, parts = self.vision(ctx, (patches[0], patches[-1]), rows, columns)
        embedded, data = self.projector(encoded), (1, rows // h.merge, columns // h.merge)
        n = data[1] * data[2]
        cuts = [(n * i, n * (i + 1)) for i in range(pairs)]
        if pairs == 1:
            return [Multimodal(embedded, data, parts=parts)]
        return [
            Multimodal(embedded.slice(1, *cut), data, parts=[part.slice(1, *cut) for part in parts])
            for cut in cuts
        ]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        return [one for part in image for one in self._inputs(part, 1)]

    def _inputs(self, part: MultimodalEmbedding, pad: int) -> list[Input]:
        """The inputs of a picture or of a pair of frames."""
        ids = [self.token_id(text, default=id) for text, id in self.frame.items()]
        return [Input(ids[0]), *part.inputs(ids[pad]), Input(ids[-1])]

    def video_frames(self, count: int, rate: float) -> NDArray[np.integer]:
        """As transformers' Qwen3VLVideoProcessor chooses them."""
        h = self.config
        most = min(h.video_max_frames, count)
        n = min(max(int(count / rate * h.video_fps), h.video_min_frames), most)
        return np.linspace(0, count - 1, n).round().astype(int)

    def video_size(self, clip: Clip) -> tuple[int, int]:
        h = self.config
        return film_size(
            clip.size, len(clip.frames), h.cell, h.video_least_pixels, h.video_most_pixels
        )

    def prepare_video(self, clip: Clip) -> Prepared:
        pixels = in_pairs(clip, self.video_size(clip), self.config)
        return Prepared(pixels, {"times": pair_times(clip)})

    def largest_video(self) -> Prepared:
        """All pixels in two frames: a patch sees those of its own frame alone."""
        pairs = self.largest_pairs(self.config.video_most_pixels // PAIR, 1)
        return Prepared(pairs, {"times": [0.0] * len(pairs)})

    video_shape = property(lambda m: ("pairs", PAIR, 3, "height", "width"))
    video_data = {"times": video_times("pairs")}

    def encode_video(self, ctx: Context, video: Prepared) -> list[Multimodal]:
        """Pixels [pairs, 2, 3, height, width]; the data has the `times` of pairs, in seconds."""
        shape, times = video.values.shape, video.data.get("times", ())
        if len(times) != shape[0]:
            raise PromptError(f"{shape[0]} pairs of frames at {len(times)} times; give one each")
        made = self._encoded(
            ctx, shape[3:], PAIR, lambda item, i: item.values[:, i], pairs=shape[0]
        )
        return [replace(one, data=(*one.data, t)) for one, t in zip(made, times, strict=True)]

    def video_inputs(self, video: list[MultimodalEmbedding]) -> list[Input | str]:
        """Each pair of frames behind its time."""
        inputs: list[Input | str] = []
        for part in video:
            inputs += [f"<{part.data[3]:.1f} seconds>", *self._inputs(part, 2)]
        return inputs
