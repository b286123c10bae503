"""A second oracle of towers: the rows that libmtmd of llama.cpp makes of pictures and sounds, from
the same files, in a process of its own.

Where it agrees with transformers, so do we. Where it does not, our encoder is made to compute what
libmtmd does (`Tower.differences`), and then agrees with it: the cause is the whole difference.
docs/convert.md lists the causes; goldens say that transformers computes what we do without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.gguf_file import open_gguf
from ggmodel.model import MultimodalEmbedding
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse
from tests.golden.files import load_golden
from tests.peers.mtmd import Mtmd
from tests.peers.towers import TOWERS, Files, Tower

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


# Others than those of the goldens: with several windows, and several blocks.
_ITEMS: dict[str, list[Item]] = {
    "gemma3n": [Item("image", (1, 3, 256, 256), {})],
    "gemma4-sounds": [Item("audio", (n, 16), {}) for n in (150, 39, 1)],
    "qwen2audio": [Item("audio", (8, 3000), {"frames": 3000})],
    "qwen25vl": [
        Item("image", (30 * 34, 96), {"image_grid_thw": [1, 30, 34]}),
        Item("video", (2 * 30 * 34, 96), {"video_grid_thw": [2, 30, 34], "second_per_grid_ts": 1}),
    ],
    "voxtral": [Item("audio", (2, 8, 96), {})],
    # Grids of as many patches as the learned one, 6 × 6, and more.
    "paddleocr": [
        Item("image", (1, 3, 4 * high, 4 * wide), {"grid": [high, wide]})
        for high, wide in ((6, 6), (10, 6), (8, 14))
    ],
}


def items(name: str) -> list[Item]:
    pictures = load_golden(*TOWERS[name].golden.split("/")).pictures.values()
    return _ITEMS.get(name) or [Item(p.kind, p.shape, p.data) for p in pictures]


@pytest.fixture(scope="module")
def mtmd(
    llama_cpp_dir: Path, llama_cpp_libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mtmd:
    return Mtmd(llama_cpp_dir, llama_cpp_libraries, tmp_path_factory.mktemp("mtmd"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return {}


@pytest.fixture(params=TOWERS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def files(name: str, written: dict[str, Files], tmp_path_factory: pytest.TempPathFactory) -> Files:
    if name not in written:
        written[name] = TOWERS[name].write(tmp_path_factory.mktemp(name) / "hf")
    return written[name]


@contextmanager
def ours(tower: Tower, files: Files, alike: bool) -> Iterator[LoadedModel]:
    """Our model, which computes as libmtmd does if `alike`."""
    options: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
    with pytest.MonkeyPatch.context() as patch:
        for differ in tower.differences if alike else ():
            differ(patch)
        with ggmodel.load(open_gguf(*files), context_length=1024, **options) as model:
            yield model


def rows_of(tower: Tower, table: np.ndarray, seen: Sequence[MultimodalEmbedding]) -> np.ndarray:
    """The rows of an item with their parts beside them, and breaks between lines."""
    found: list[np.ndarray] = []
    for one in seen:
        if found and tower.breaks is not None:
            found.append(table[[tower.breaks]])
        found.append(np.concatenate([one.rows, *one.parts], axis=1))
    return np.concatenate(found)


def table_of(files: Files) -> np.ndarray:
    """The embedding of the text, [tokens, width]."""
    with open_gguf(files.text) as file:
        width, tokens = file.tensors["token_embd.weight"].shape
        return np.frombuffer(file.data("token_embd.weight"), np.float32).reshape(tokens, width)


def compared(tower: Tower, files: Files, mtmd: Mtmd, name: str, alike: bool) -> list[float]:
    """NMSE by item."""
    table, found = table_of(files), list[float]()
    with ours(tower, files, alike) as model:
        for item in items(name):
            seen = model.encode(item.kind, item.values, **item.data)
            got = rows_of(tower, table, seen)
            kind = "audio" if item.kind == "audio" else "image"
            want = np.concatenate(
                mtmd.prepared(files.mmproj, kind, item.apart(tower.architecture))
            )
            found.append(nmse(got[: len(want)], want) if len(got) >= len(want) else np.inf)
    return found


def test_rows_of_the_same_values(name: str, files: Files, mtmd: Mtmd):
    tower = TOWERS[name]
    assert max(compared(tower, files, mtmd, name, alike=True)) < tower.bound
