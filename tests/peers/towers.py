"""Tiny models that see or hear, as the two files that libmtmd reads, and how it differs from them.

Most are those of the goldens. Where libmtmd has a constant in place of a hyperparameter, they have
its value. Kernels of convolutions, and values made of levels, are numbers that F16 holds: llama.cpp
rounds both to it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ggmodel.image as pictures
from ggmodel import nn
from ggmodel.convert import convert
from ggmodel.ml import DType, Tensor
from ggmodel.models.internvl import vision as internvl
from ggmodel.models.lfm2vl import vision as lfm2vl
from ggmodel.models.llama4 import vision as llama4
from ggmodel.models.paddleocr import vision as paddleocr
from ggmodel.workbench.golden import Cases
from tests.convert.folders import add_special, write_model, write_tokenizer
from tests.golden.files import HERE, load_golden

# Sums in another order; ggml's GELUs read tables in F16, and a bit that falls the other way makes
# 1e-8, or twice that where rows of several layers are laid in. Differences make 9e-8 and more.
EXACT = 5e-8
# llama.cpp rounds to F16 what some products and convolutions take: 2e-8 to 7e-8 each.
ROUNDED = 2e-6

Difference = Callable[[pytest.MonkeyPatch], None]


class Files(NamedTuple):
    """As `ggmodel convert --mmproj` writes them.

    Attributes:
        beside: the text that libmtmd reads.
    """

    text: Path
    mmproj: Path
    beside: Path


@dataclass(frozen=True)
class Tower:
    """A model.

    Attributes:
        golden: architecture/case.
        changes: keys of config.json, with dots, → other values than the golden's.
        prepared: preprocessor_config.json.
        special: tokens of prompts, in place of the golden's or beside them.
        shapes: of tensors that are larger or smaller than the golden's.
        bound: NMSE of rows of the same values, our encoder computing as libmtmd does.
        differences: make our encoder compute so.
        preparing: make our preparation of pictures compute so.
        breaks: the token that stands as a row between lines of rows.
        unlaid: tokens around rows that libmtmd leaves out.
        ending: the token that it lays in place of the last row.
        text: the golden of a text for libmtmd, where llama.cpp refuses the tiny model's own.
    """

    golden: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    prepared: Mapping[str, Any] = field(default_factory=dict)
    special: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bound: float = EXACT
    differences: tuple[Difference, ...] = ()
    preparing: tuple[Difference, ...] = ()
    breaks: int | None = None
    unlaid: tuple[str, ...] = ()
    ending: int | None = None
    text: str = ""

    @property
    def architecture(self) -> str:
        return self.golden.partition("/")[0]

    @property
    def tokens(self) -> dict[str, int]:
        known = getattr(Cases(HERE / self.architecture).module, "SPECIAL", {})
        return {**known, **self.special}

    def write(self, folder: Path) -> Files:
        size = self._checkpoint(folder)
        files = Files(folder / "text.gguf", folder / "mmproj.gguf", folder / "beside.gguf")
        convert(folder, files.text, "f32", mmproj=files.mmproj, pre="gpt-2")
        if not self.text:
            return files._replace(beside=files.text)
        width = load_golden(*self.text.split("/")).config["hidden_size"]
        shapes = {"model.embed_tokens.weight": (size, width)}
        other = Tower(self.text, {"vocab_size": size}, special=self.tokens, shapes=shapes)
        other._checkpoint(folder / "beside")
        convert(folder / "beside", files.beside, "f32", pre="gpt-2")
        return files

    def _checkpoint(self, folder: Path) -> int:
        """Writes a checkpoint; the number of its tokens."""
        golden = load_golden(*self.golden.split("/"))
        config = _changed(golden.config, self.changes)
        config.pop("preprocessor:", None)
        weights = Cases(HERE / self.architecture).weights({**golden.tensors, **self.shapes})
        write_model(folder, config, {name: _like_theirs(name, x) for name, x in weights.items()})
        size = config.get("text_config", config)["vocab_size"]
        write_tokenizer(folder, size)
        add_special(folder, {text: i for text, i in self.tokens.items() if i < size})
        if self.prepared:
            (folder / "preprocessor_config.json").write_text(json.dumps(self.prepared))
        return size


def _changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(config)
    for key, value in changes.items():
        part, _, rest = key.partition(".")
        found[part] = _changed(found[part], {rest: value}) if rest else value
    return found


def _like_theirs(name: str, values: np.ndarray) -> np.ndarray:
    """Kernels that F16 holds. Limits of Gemma 4's maps from 1 on: behind those of the goldens,
    which cut off most values, llama.cpp's roundings make 1e-7 in pictures, 7e-6 in sounds."""
    if name.endswith(("put_min", "put_max")):
        return np.where(np.abs(values) < 1, 8 * values, values)
    convolution = values.ndim > 3 or "patch_embed" in name or ("conv" in name and values.ndim == 3)
    return values.astype(np.float16).astype(np.float32) if convolution else values


def tanh(patch: pytest.MonkeyPatch) -> None:
    """Each GELU is by tanh."""
    patch.setattr(Tensor, "gelu_erf", Tensor.gelu)


def class_token_last(patch: pytest.MonkeyPatch) -> None:
    """Patches come before the class token, and the table of positions begins with its row."""
    usual = internvl.Vision.forward

    def forward(tower: internvl.Vision, ctx: Any, count: int) -> Tensor:
        table, tower = tower.positions, copy.copy(tower)
        last = table.dim(1) - 1
        turned = table.slice(1, last, last + 1).concat(table.slice(1, 0, last), 1)
        object.__setattr__(tower, "positions", turned)
        return usual(tower, ctx, count)

    patch.setattr(internvl.Vision, "forward", forward)


def layer_norms(patch: pytest.MonkeyPatch) -> None:
    """RMS norms are layer norms."""

    def forward(norm: Any, x: Tensor, eps: float | None = None) -> Tensor:
        return x.layer_norm(norm.weight, None, 1e-6 if eps is None else eps)

    for kind in (internvl.Norm, nn.RMSNorm):
        patch.setattr(kind, "forward", forward)


def antialiased(patch: pytest.MonkeyPatch) -> None:
    """Where a page has fewer patches a side than the learned grid, positions are the means of more
    than their neighbours."""
    usual = paddleocr.Vision.forward

    def forward(tower: paddleocr.Vision, ctx: Any, rows: int, columns: int) -> Tensor:
        table, tower = tower.positions.weight, copy.copy(tower)
        side = round(table.dim(1) ** 0.5)
        shares = np.kron(lfm2vl.shares(rows, side), lfm2vl.shares(columns, side))
        given = ctx.feed(lambda _: shares, DType.F32, side**2, rows * columns)
        known = table.permute(1, 0).contiguous().mulmat(given)
        object.__setattr__(tower, "positions", _Known(table, known))
        return usual(tower, ctx, rows, columns)

    patch.setattr(paddleocr.Vision, "forward", forward)


@dataclass(frozen=True)
class _Known:
    """Stands for an embedding: the same rows, whatever is asked for."""

    weight: Tensor
    rows: Tensor

    def __call__(self, ids: Tensor) -> Tensor:
        return self.rows


def by_pillow(patch: pytest.MonkeyPatch) -> None:
    """Pictures are resized with Pillow's weights."""
    patch.setattr(lfm2vl, "resize", lambda *given: pictures.resize(*given, pillow=True))


def unrounded(patch: pytest.MonkeyPatch) -> None:
    """Pixels are not rounded to BF16."""
    usual = pictures.normalize
    patch.setattr(pictures, "normalize", lambda *given, **options: usual(*given))


def by_columns(patch: pytest.MonkeyPatch) -> None:
    """The rows of a tile go down its columns."""
    usual = llama4.Projector.forward

    def forward(projector: llama4.Projector, x: Tensor) -> Tensor:
        width, rows, tiles = (*x.shape, 1)[:3]
        side = round(rows**0.5)
        x = x.reshape(width, side, side, tiles).permute(0, 2, 1, 3).contiguous(width, rows, tiles)
        return usual(projector, x)

    patch.setattr(llama4.Projector, "forward", forward)


def pooled(patch: pytest.MonkeyPatch) -> None:
    """The encoder averages pairs of its rows before its last norm."""
    usual = nn.AudioEncoder.forward
    patch.setattr(nn.AudioEncoder, "forward", lambda encoder, x: usual(encoder, x, pooled=True))


# Levels of 0 to 255 become numbers that F16 holds.
_LEVELS = {"image_mean": [0.0] * 3, "image_std": [128 / 255] * 3}
# The least and the most rows of a picture are libmtmd's, 8 and 4096.
_QWEN = {
    "size": {"shortest_edge": 512, "longest_edge": 262144},
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    **_LEVELS,
}
_PIXTRAL = {
    "image_processor_type": "PixtralImageProcessorFast",
    "do_center_crop": None,
    "size": {"longest_edge": 48},
    "patch_size": 4,
    **_LEVELS,
}
# The break of a row is row 12 of the embedding in mmproj files, as in published vocabularies.
_BREAK = 12
_NETWORK = load_golden("gemma3n", "images")
_POSITIONS = "audio_tower.embed_positions.weight"
_HEARD = {"feature_size": 8, "n_fft": 400, "hop_length": 160, "sampling_rate": 16000}
_SOUND = {**_HEARD, "chunk_length": 30, "n_samples": 480_000, "nb_max_frames": 3000}

TOWERS = {
    "gemma3": Tower(
        "gemma3/images",
        prepared={**_LEVELS, "size": {"height": 24, "width": 24}},
        bound=ROUNDED,  # its projection is F16 in mmproj files
        unlaid=("\n\n",),
    ),
    "gemma3n": Tower(
        "gemma3n/images",
        {
            "vision_config.hidden_size": 64,  # libmtmd takes it for the width of the text
            "vision_config.model_args.msfa_output_resolution": 16,
            "vision_soft_tokens_per_image": 256,
        },
        {
            **_NETWORK.config["preprocessor:"],
            "size": {"height": 256, "width": 256},
            "image_seq_length": 256,
            "feature_size": 16,
        },
        shapes={
            name: tuple(64 if n == 2048 else n for n in shape)
            for name, shape in _NETWORK.tensors.items()
            if 2048 in shape
        },
        special={"<start_of_image>": 58, "<end_of_image>": 64},
        bound=ROUNDED,  # its kernels of single channels are F16 in mmproj files
        unlaid=("\n\n",),
        ending=64,
        text="llama/tied",
    ),
    "gemma4": Tower(
        "gemma4/images",
        {"vision_soft_tokens_per_image": 280, "vision_config.position_embedding_size": 560},
        shapes={"model.vision_tower.patch_embedder.position_embedding_table": (2, 560, 64)},
    ),
    "gemma4-standardized": Tower("gemma4/images_dense"),
    "gemma4-sounds": Tower(
        "gemma4/sounds",
        {"audio_config.attention_chunk_size": 12, "audio_config.attention_context_left": 13},
        bound=ROUNDED,  # the second convolution takes activations
    ),
    "glm_ocr": Tower(
        "glm_ocr/published",
        prepared=_QWEN,
        bound=ROUNDED,  # the merger is a convolution, which takes activations
    ),
    "idefics3": Tower(
        "idefics3/tiles",
        prepared={
            **_LEVELS,
            "size": {"longest_edge": 78},
            "max_image_size": {"longest_edge": 26},
            "resample": 1,
        },
    ),
    "smolvlm": Tower("idefics3/smolvlm"),
    "internvl": Tower(
        "internvl/qwen2",
        prepared={**_LEVELS, "size": {"height": 16, "width": 16}, "max_patches": 6},
        differences=(tanh, class_token_last),
    ),
    # Its tower has RMS norms; libmtmd knows that only of the published one, by its size.
    "internvl-rms": Tower("internvl/qwen3", differences=(tanh, class_token_last, layer_norms)),
    # Tiles have 512 pixels a side, and rows of other pictures are 64 to 256, for any tower.
    "lfm2vl": Tower(
        "lfm2vl/published",
        {"vision_config.patch_size": 16},
        prepared=_LEVELS,
        shapes={"model.vision_tower.embeddings.patch_embedding.weight": (32, 768)},
        differences=(tanh,),
        preparing=(by_pillow,),
    ),
    "llama4": Tower(
        "llama4/released",
        prepared={**_LEVELS, "size": {"height": 24, "width": 24}},
        differences=(tanh, by_columns),
        preparing=(unrounded,),
        unlaid=("<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>"),
    ),
    **{
        name: Tower(
            f"mistral3/{case}",
            {"vision_config.rope_theta": 10000.0},
            _PIXTRAL,
            special={"[IMG_BREAK]": _BREAK},
            differences=(tanh,),
            breaks=_BREAK,
        )
        for name, case in (
            ("mistral3", "images"),
            ("ministral", "ministral"),
            ("pixtral", "pixtral"),
        )
    },
    "paddleocr": Tower(
        "paddleocr/pages",
        prepared={
            **_LEVELS,
            "min_pixels": 512,
            "max_pixels": 262144,
            "patch_size": 4,
            "merge_size": 2,
            "temporal_patch_size": 1,
        },
        differences=(tanh,),
    ),
    "paddleocr-small": Tower("paddleocr/pages", differences=(tanh, antialiased)),
    "qwen2vl": Tower("qwen2vl/qwen2", prepared=_QWEN, differences=(tanh,)),
    "qwen25vl": Tower(
        "qwen2vl/qwen25",
        {"vision_config.window_size": 112},
        prepared=_QWEN,
        differences=(tanh,),
    ),
    "qwen3vl": Tower("qwen3vl/images", prepared=_QWEN, differences=(tanh,)),
    "qwen35": Tower("qwen3vl/qwen35", prepared=_QWEN, differences=(tanh,)),
    "qwen2audio": Tower(
        "qwen2audio/published",
        {"audio_config.max_source_positions": 1500},
        _SOUND,
        shapes={_POSITIONS: (1500, 32)},
        bound=ROUNDED,  # the second convolution takes activations
    ),
    "qwen3asr": Tower(
        "qwen3asr/published",
        {"audio_config.n_window_infer": 800},
        bound=ROUNDED,  # later convolutions take activations
    ),
    # With 1500 positions, as published, it miscounts its rows and ends.
    "voxtral": Tower(
        "voxtral/published",
        {"audio_config.max_source_positions": 48},
        shapes={_POSITIONS: (48, 32)},
        bound=ROUNDED,  # as that of Qwen2-Audio
        differences=(pooled,),
    ),
}
