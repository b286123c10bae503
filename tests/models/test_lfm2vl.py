"""LFM2-VL: how a picture becomes tiles, and the names and keys of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert import convert, from_hf
from ggmodel.errors import ConfigError, Error, ImageError, PromptError
from ggmodel.gguf_file import open_gguf
from ggmodel.model import find
from ggmodel.models.lfm2vl.config import Lfm2VlConfig
from ggmodel.models.lfm2vl.vision import grid_of, shares, tiles_of
from ggmodel.workbench.golden import source_of
from tests.convert.folders import add_special, write_model, write_tokenizer
from tests.golden.files import load_golden
from tests.golden.lfm2vl import cases as lfm2vl
from tests.vision import vision_model

OPTIONS: dict[str, Any] = {"kv_type": "f32", "context_length": 128, "threads": 1}
# As published, for patches of 4 and rows of 8 pixels.
PREPARED = {
    "do_image_splitting": True,
    "do_normalize": True,
    "do_pad": True,
    "do_rescale": True,
    "do_resize": True,
    "downsample_factor": 2,
    "encoder_patch_size": 4,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Lfm2VlImageProcessorFast",
    "image_std": [0.5, 0.5, 0.5],
    "max_image_tokens": 9,
    "max_num_patches": 36,
    "max_pixels_tolerance": 2.0,
    "max_tiles": 4,
    "min_image_tokens": 4,
    "min_tiles": 2,
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "return_row_col_info": True,
    "size": {"height": 512, "width": 512},
    "tile_size": 24,
    "use_thumbnail": True,
}
NOISE = np.random.default_rng(3).integers(0, 256, (96, 96, 3), np.uint8)


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(NOISE).resize((width, height))


def folder_of(folder: Path, config: dict[str, Any] | None = None, **prepared: Any) -> Path:
    """A Hugging Face folder whose vocabulary has the special tokens."""
    golden = load_golden("lfm2vl", "published")
    config = {k: v for k, v in golden.config.items() if k != "preprocessor:"} | (config or {})
    write_model(folder, config, golden.weights())
    write_tokenizer(folder, config["text_config"]["vocab_size"])
    add_special(folder, lfm2vl.SPECIAL)
    (folder / "preprocessor_config.json").write_text(json.dumps({**PREPARED, **prepared}))
    return folder


def hyperparameters(**changes: Any) -> Any:
    """The numbers of LFM2-VL's published preparation."""
    usual = {
        "patch": 16,
        "merge": 2,
        "least_rows": 64,
        "most_rows": 256,
        "least_tiles": 2,
        "most_tiles": 10,
        "side": 512,
        "tolerance": 2.0,
        "thumbnail": True,
        "resample": "bilinear",
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    values = {**usual, **changes}
    values["cell"] = values["patch"] * values["merge"]
    return type("Config", (), values)


# Width, height → the grid of tiles, rows and columns, and the width and height of the whole view,
# as transformers 5.23's Lfm2VlImageProcessor chooses them.
SIZES = [
    ((512, 512), (1, 1), (512, 512)),
    ((640, 480), (1, 1), (576, 416)),
    ((1040, 512), (1, 1), (704, 352)),
    ((1200, 800), (2, 3), (608, 416)),
    ((350, 1500), (4, 1), (224, 1056)),
    ((100, 60), (1, 1), (352, 224)),
    ((30, 3000), (1, 1), (32, 3008)),
    ((16, 16), (1, 1), (256, 256)),
]


@pytest.mark.parametrize(("size", "grid", "whole"), SIZES)
def test_sizes_of_pictures(size: tuple[int, int], grid: tuple[int, int], whole: tuple[int, int]):
    h = hyperparameters()
    assert grid_of(size, h) == grid
    shapes = tiles_of(Image.new("RGB", size), h).data["shapes"]
    tiles = grid[0] * grid[1]
    assert shapes == ((32, 32),) * (tiles if tiles > 1 else 0) + ((whole[1] // 16, whole[0] // 16),)


def test_neither_tiles_nor_a_view_of_the_whole():
    """As a preprocessor_config.json may ask for."""
    assert grid_of((3000, 2000), hyperparameters(most_tiles=1)) == (1, 1)
    h = hyperparameters(patch=4, side=24, least_rows=4, most_rows=9, most_tiles=2, thumbnail=False)
    found = tiles_of(noise(56, 24), h)
    assert found.data == {"grid": (1, 2), "shapes": ((6, 6), (6, 6))}
    assert found.values.shape == (72, 48)


def test_tiles_follow_one_another_row_by_row():
    h = hyperparameters(patch=4, side=24, least_rows=4, most_rows=9)
    picture = noise(72, 48)
    found = tiles_of(picture, h)
    assert found.data["grid"] == (2, 3)
    pixels = (np.asarray(picture, np.float32) / 255 - 0.5) / 0.5
    second = pixels[:24, 24:48].reshape(6, 4, 6, 4, 3).transpose(0, 2, 4, 1, 3).reshape(36, 48)
    np.testing.assert_allclose(found.values[36:72], second, atol=1e-6)


def test_learned_positions_are_spread_over_a_grid():
    assert np.array_equal(shares(5, 5), np.eye(5))
    np.testing.assert_allclose(shares(4, 2), [[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]])
    # Fewer than learned: each is a mean of all that lie within its width.
    np.testing.assert_allclose(shares(1, 2), [[0.5, 0.5]])
    np.testing.assert_allclose(shares(2, 4)[0], np.array([3, 3, 1, 0]) / 7)


def test_a_strip_is_refused():
    with pytest.raises(ImageError, match="an image of 1 × 9000 pixels is more than 200 times"):
        tiles_of(Image.new("RGB", (1, 9000)), hyperparameters())


def test_names_as_published_and_as_transformers_saves_them():
    """And the pooling head of SigLIP 2, which no row goes through."""
    golden, cls = load_golden("lfm2vl", "published"), find("lfm2vl")
    older = {
        n.replace("vision_tower.", "vision_tower.vision_model."): w
        for n, w in golden.weights().items()
    }
    assert older.keys() != golden.weights().keys()
    older["model.vision_tower.vision_model.head.probe"] = np.ones((1, 1, 32), np.float32)
    usual, other = source_of(golden), from_hf(cls, golden.config, older)
    assert other.tensors.keys() == usual.tensors.keys()
    assert all(bytes(other.data(n)) == bytes(usual.data(n)) for n in usual.tensors)


def test_files_compute_what_the_folder_does(tmp_path: Path):
    """In one file, and in the two that llama.cpp reads, under the names of its converter."""
    folder = folder_of(tmp_path / "folder")
    one, text, mmproj = (tmp_path / f"{name}.gguf" for name in ("one", "text", "mmproj"))
    convert(folder, one, pre="gpt-2")
    convert(folder, text, mmproj=mmproj, pre="gpt-2")
    prompt = [3, 4, noise(60, 40), 5]
    found = []
    for source in (folder, open_gguf(one), open_gguf(text, mmproj)):
        with ggmodel.load(source, **OPTIONS) as model:
            found.append(model.logits(prompt))
    # Two rows of two tiles and the whole: 16 × 24 pixels.
    assert found[0].shape[0] == 3 + 2 + 5 + 4 * 9 + 6
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    with open_gguf(mmproj) as file:
        keys = {k.removeprefix("clip."): v for k, v in file.metadata.items()}
        names = {name for name in file.tensors if ".blk." not in name or ".blk.0." in name}
    assert keys["projector_type"] == "lfm2" and keys["use_gelu"]
    assert keys["vision.image_size"] == 256 and keys["vision.projector.scale_factor"] == 2
    assert (keys["vision.image_min_tokens"], keys["vision.image_max_tokens"]) == (4, 9)
    linear = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down", "ln1", "ln2")
    both = {f"v.blk.0.{name}" for name in linear} | {"v.post_ln", "v.patch_embd"}
    both |= {"mm.input_norm", "mm.1", "mm.2"}
    assert names == {f"{name}.{end}" for name in both for end in ("weight", "bias")} | {
        "v.position_embd.weight"
    }


def test_a_folder_says_how_pictures_are_cut(tmp_path: Path):
    changes: dict[str, Any] = {"max_tiles": 3, "use_thumbnail": False, "max_pixels_tolerance": 1.5}
    for prepared, wanted in (
        (changes, (2, 3, False, 1.5)),
        (dict[str, Any](do_image_splitting=False), (1, 1, True, 2.0)),
    ):
        folder = folder_of(tmp_path / str(len(prepared)), **prepared)
        with ggmodel.load(folder, **OPTIONS) as model:
            h: Lfm2VlConfig = model.model.config
        assert (h.least_tiles, h.most_tiles, h.thumbnail, h.tolerance) == wanted


def test_tokens_around_tiles():
    """Ids of published vocabularies, where a file has none."""
    source = source_of(load_golden("lfm2vl", "published"))
    prepared = {"image_min_tokens": 4, "image_max_tokens": 9, "tile_size": 24}
    prepared["preproc_max_tiles"] = 2
    keys = {f"lfm2vl.vision.{key}": value for key, value in prepared.items()}
    source.metadata = {**source.metadata, **keys}
    with ggmodel.load(source, **OPTIONS) as model:
        vision: Any = vision_model(model)
        small, large = model.embeddings(noise(20, 20)), model.embeddings(noise(24, 56))
        tokens: Any = [one.token for one in vision.image_inputs(small)]
        assert tokens == [498, 396, 396, 396, 396, 499]
        tokens = [one.token for one in vision.image_inputs(large)]
        named = [token for token in tokens if token != 396]
        assert named == [498, 397, 407, 497, 499] and tokens.count(396) == 9 + 9 + 4


def test_patches_of_the_reference_are_those_of_a_picture():
    golden = load_golden("lfm2vl", "published")
    with ggmodel.load(source_of(golden), **OPTIONS) as model:
        for picture in golden.pictures.values():
            inputs = lfm2vl.model_inputs(golden.config, [], [picture])
            again = vision_model(model).reference_pixels(inputs, picture.data)
            assert np.array_equal(again.values, picture.pixels)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({}, "the shapes of 0 tiles for 1 rows of 1"),
        ({"shapes": [[4, 4], [4, 4]]}, "the shapes of 2 tiles for 1 rows of 1"),
        ({"shapes": [[4, 4]], "grid": [2, 1]}, "the shapes of 1 tiles for 2 rows of 1"),
        ({"shapes": [[4, 3]]}, "give multiples of 2"),
        ({"shapes": [[4, 4]]}, "32 patches for tiles of 16"),
        ({"shapes": [[0, 4]]}, "of at least 1"),
    ],
)
def test_data_that_do_not_fit(data: dict[str, Any], shown: str):
    with (
        ggmodel.load(source_of(load_golden("lfm2vl", "published")), **OPTIONS) as model,
        pytest.raises(PromptError, match=shown),
    ):
        model.embeddings(np.zeros((32, 48), np.float32), **data)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"vision.image_min_tokens": 300}, "is 300; it must be .* or less"),
        ({"vision.preproc_min_tiles": 11}, "is 11; it must be .* or less"),
        ({"vision.attention.head_count": 3}, "head_count is 3; it must divide 32"),
    ],
)
def test_impossible_towers(changes: dict[str, int], shown: str):
    source = source_of(load_golden("lfm2vl", "published"))
    source.metadata = {**source.metadata, **{f"lfm2vl.{k}": v for k, v in changes.items()}}
    with pytest.raises(Error, match=shown):
        ggmodel.load(source, **OPTIONS)


def test_learned_positions_that_are_no_square():
    golden = load_golden("lfm2vl", "published")
    weights = golden.weights()
    name = "model.vision_tower.embeddings.position_embedding.weight"
    weights[name] = weights[name][:24]
    with pytest.raises(ConfigError, match="24 learned positions of patches; they are a square"):
        ggmodel.load(from_hf(find("lfm2vl"), golden.config, weights), **OPTIONS)


@pytest.mark.parametrize(
    "changes", [{"encoder_patch_size": 8}, {"downsample_factor": 4}, {"do_resize": False}]
)
def test_another_preparation_than_the_tower_takes_is_refused(
    changes: dict[str, Any], tmp_path: Path
):
    with pytest.raises(Error, match=f"preprocessor:{next(iter(changes))}"):
        ggmodel.load(folder_of(tmp_path, **changes), **OPTIONS)
