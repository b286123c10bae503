"""A second oracle of towers: the rows that libmtmd of llama.cpp makes of pictures and sounds, from
the same files, in a process of its own.

Where it agrees with transformers, so do we. Where it does not, our encoder is made to compute what
libmtmd does (`Tower.differences`), and then agrees with it: the cause is the whole difference.
docs/convert.md lists the causes; goldens say that transformers computes what we do without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ggmodel.workbench.golden import nmse
from tests.golden.files import load_golden
from tests.peers.laid import both_laid, laid_by, ours, rows_of, table_of
from tests.peers.mtmd import Mtmd
from tests.peers.towers import TOWERS, Difference, Files, Tower

pytestmark = pytest.mark.filterwarnings("ignore:context_length is")


class Item:
    """Values as transformers' processor gives them, and as libmtmd takes them."""

    def __init__(self, kind: str, shape: tuple[int, ...], data: dict[str, Any]):
        self.kind, self.data = kind, data
        levels = np.random.default_rng(len(shape) + shape[-1]).integers(-256, 257, shape)
        self.values = (levels / 128).astype(np.float32)

    def apart(self, architecture: str) -> list[np.ndarray]:
        """Images [frames, height, width, 3], spectra [bands, frames]."""
        x = self.values
        if architecture == "lfm2vl":
            return self._tiles()
        if self.kind == "audio":
            by_frame = architecture.startswith("gemma")
            return list(x) if x.ndim == 3 else [x.T if by_frame else x]
        grid = self.data.get("image_grid_thw") or self.data.get("video_grid_thw")
        if grid:  # patches in squares of 2 × 2, each of 3 channels in 2 frames of 4 × 4 pixels
            times, high, wide = grid
            x = x.reshape(times, high // 2, wide // 2, 2, 2, 3, 2, 4, 4)
            x = x.transpose(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(times, 2, 3, high * 4, wide * 4)
        x = x if x.ndim == 5 else x[:, None]
        return [np.moveaxis(frames, 1, -1) for frames in x]

    def _tiles(self) -> list[np.ndarray]:
        """Tiles of patches row by row, each of 3 channels."""
        shapes, side = self.data["shapes"], math.isqrt(self.values.shape[1] // 3)
        ends = np.cumsum([rows * columns for rows, columns in shapes])
        return [
            patches.reshape(rows, columns, 3, side, side)
            .transpose(0, 3, 1, 4, 2)
            .reshape(1, rows * side, columns * side, 3)
            for patches, (rows, columns) in zip(
                np.split(self.values, ends[:-1]), shapes, strict=True
            )
        ]


# Others than those of the goldens: with several windows, and several blocks.
_ITEMS: dict[str, list[Item]] = {
    "gemma3n": [Item("image", (1, 3, 256, 256), {})],
    "gemma4-sounds": [Item("audio", (n, 16), {}) for n in (150, 39, 1)],
    "lfm2vl": [
        Item("image", (160, 768), {"shapes": [[16, 10]]}),
        Item("image", (64, 768), {"shapes": [[4, 4], [4, 4], [2, 16]], "grid": [1, 2]}),
    ],
    "qwen2audio": [Item("audio", (8, 3000), {"frames": 3000})],
    "qwen3asr": [Item("audio", (n, 16, 800), {"frames": [800] * n}) for n in (1, 2)],
    "qwen25vl": [
        Item("image", (30 * 34, 96), {"image_grid_thw": [1, 30, 34]}),
        Item("video", (2 * 30 * 34, 96), {"video_grid_thw": [2, 30, 34], "second_per_grid_ts": 1}),
    ],
    "voxtral": [Item("audio", (2, 8, 96), {})],
    # Grids of as many patches as the learned one, 6 × 6, and more; and of fewer.
    **{
        name: [Item("image", (1, 3, 4 * h, 4 * w), {}) for h, w in grids]
        for name, grids in (
            ("paddleocr", ((6, 6), (10, 6), (8, 14))),
            ("paddleocr-small", ((4, 4), (2, 12), (10, 4))),
        )
    },
}


def items(name: str) -> list[Item]:
    pictures = load_golden(*TOWERS[name].golden.split("/")).pictures.values()
    return _ITEMS.get(name) or [Item(p.kind, p.shape, p.data) for p in pictures]


@pytest.fixture(params=TOWERS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def files(name: str, tower_files: Callable[[Tower], Files]) -> Files:
    return tower_files(TOWERS[name])


def compared(
    name: str,
    files: Files,
    mtmd: Mtmd,
    differences: Sequence[Difference],
    theirs: Files | None = None,
) -> list[float]:
    """NMSE by item; libmtmd may have another file."""
    tower, table, found = TOWERS[name], table_of(files), list[float]()
    with ours(files, differences) as model:
        for item in items(name):
            got = rows_of(tower, table, model.encode_media(item.kind, item.values, **item.data))
            kind = "audio" if item.kind == "audio" else "image"
            apart = item.apart(tower.architecture)
            want = np.concatenate(mtmd.prepared((theirs or files).mmproj, kind, apart))
            assert got.shape[1] == want.shape[1]
            found.append(nmse(got, want) if len(got) == len(want) else np.inf)
    return found


def test_rows_of_the_same_values(name: str, files: Files, mtmd: Mtmd):
    tower = TOWERS[name]
    assert max(compared(name, files, mtmd, tower.differences)) < tower.bound


@pytest.mark.parametrize(
    ("name", "left"), [(n, d) for n, tower in TOWERS.items() for d in tower.differences]
)
def test_no_difference_is_superfluous(name: str, left: Difference, files: Files, mtmd: Mtmd):
    others = [one for one in TOWERS[name].differences if one is not left]
    assert min(compared(name, files, mtmd, others)) > TOWERS[name].bound


# A picture of one size, and the one that libmtmd makes of it; in tiles, how many and how large.
FITTING = {
    "gemma3": [(24, 24)],
    "gemma3n": [(256, 256)],
    "gemma4": [(160, 112)],  # 280 rows, to which others are enlarged or shrunk
    "glm_ocr": [(32, 24), (48, 16)],
    # These are resized, twice, and cut.
    "idefics3": [(52, 26), (78, 52), (20, 20), (50, 30), (31, 77)],
    "internvl": [(16, 16)],
    # Whole, and one row of two tiles, of the same proportions as the picture.
    "lfm2vl": [(300, 250), (1400, 700)],
    "llama4": [(24, 24)],
    "ministral": [(40, 24)],
    "mistral3": [(40, 24), (48, 48)],
    "paddleocr": [(32, 24), (24, 48)],
    "pixtral": [(40, 24), (48, 12)],
    "qwen25vl": [(32, 24), (120, 136)],
    "qwen2vl": [(32, 24), (48, 16)],
    "qwen35": [(32, 24), (48, 16)],
    "qwen3vl": [(32, 24), (48, 16)],
}
FRAMED = {
    "gemma3": ((40, 20), (24, 24)),
    "gemma3n": ((50, 30), (256, 256)),
    "gemma4": ((100, 90), (104, 88)),
    "glm_ocr": ((50, 30), (48, 32)),
    "ministral": ((47, 30), (48, 32)),
    "mistral3": ((47, 30), (48, 32)),
    "paddleocr": ((50, 30), (48, 32)),
    "pixtral": ((47, 30), (48, 32)),
    "qwen25vl": ((50, 30), (48, 32)),
    "qwen2vl": ((50, 30), (48, 32)),
    "qwen35": ((50, 30), (48, 32)),
    "qwen3vl": ((50, 30), (48, 32)),
}
TILED = {"internvl": ((50, 30), (2, 3), 16), "llama4": ((50, 30), (2, 3), 24)}


def noise(width: int, height: int) -> Image.Image:
    levels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(levels)


def framed(picture: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
    """A picture of this size, proportions kept, between black bars."""
    scale = min(np.float32(size[i]) / np.float32(picture.size[i]) for i in (0, 1))
    inner = [min(int(np.ceil(picture.size[i] * scale)), size[i]) for i in (0, 1)]
    found = Image.new("RGB", size)
    resized = picture.resize((inner[0], inner[1]), resample)
    found.paste(resized, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    return found


@pytest.mark.parametrize("name", FITTING)
def test_pictures_that_fit(name: str, files: Files, mtmd: Mtmd):
    """From pixels to all rows of a prompt, and the tokens around and between them."""
    tower = TOWERS[name]
    for size in FITTING[name]:
        got, want = both_laid(tower, files, mtmd, noise(*size), tower.preparing)
        assert got.tokens == want.tokens
        assert nmse(got.rows, want.rows) < tower.bound
        if tower.preparing:
            got, _ = both_laid(tower, files, mtmd, noise(*size))
            assert nmse(got.rows, want.rows) > tower.bound


def normalized(pictures: Sequence[Image.Image]) -> np.ndarray:
    """As `_LEVELS` says, [n, 3, height, width]."""
    return np.stack([np.asarray(one, np.float32).transpose(2, 0, 1) / 128 for one in pictures])


def rows_of_both(name: str, files: Files, mtmd: Mtmd, item: Any, alike: Any, **data: Any) -> Any:
    """Our rows of a picture, ours of what libmtmd makes of it, and libmtmd's."""
    tower, table = TOWERS[name], table_of(files)
    with ours(files, tower.differences) as model:
        usual = rows_of(tower, table, model.encode_media("image", item))
        same = rows_of(tower, table, model.encode_media("image", alike, **data))
    return usual, same, laid_by(mtmd, files, np.asarray(item)).rows


@pytest.mark.parametrize("name", FRAMED)
def test_other_pictures_are_stretched_here_and_framed_there(name: str, files: Files, mtmd: Mtmd):
    size, full = FRAMED[name]
    linear = name in ("gemma3", "gemma3n")
    resample = Image.Resampling.BILINEAR if linear else Image.Resampling.BICUBIC
    picture = noise(*size)
    frame: Any = framed(picture, full, resample)
    if name == "gemma4":  # ours would be enlarged
        frame = normalized([frame]) * np.float32(128 / 255)
    usual, same, want = rows_of_both(name, files, mtmd, picture, frame)
    assert nmse(same, want) < TOWERS[name].bound
    assert len(usual) != len(same) or nmse(usual, want) > 0.01


@pytest.mark.parametrize("name", TILED)
def test_tiles_are_stretched_here_and_framed_there(name: str, files: Files, mtmd: Mtmd):
    size, (rows, columns), side = TILED[name]
    picture, cubic = noise(*size), Image.Resampling.BICUBIC
    large = framed(picture, (columns * side, rows * side), cubic)
    places = [(c * side, r * side) for r in range(rows) for c in range(columns)]
    tiles = [large.crop((x, y, x + side, y + side)) for x, y in places]
    tiles.append(picture.resize((side, side), cubic))
    data: dict[str, Any] = {"aspect_ratio": [rows, columns]} if name == "llama4" else {}
    usual, same, want = rows_of_both(name, files, mtmd, picture, normalized(tiles), **data)
    assert nmse(same, want) < TOWERS[name].bound
    assert nmse(usual, want) > 1e-3
