"""Configurations, names and pictures of Qwen 2-VL and 2.5-VL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

import ggmodel
from ggmodel.convert import convert, from_hf, metadata_of, normalize
from ggmodel.errors import ConfigError, Error, ImageError, PromptError
from ggmodel.gguf_file import open_gguf
from ggmodel.model import find
from ggmodel.nn import vision_windows
from ggmodel.workbench.golden import nmse, source_of
from tests.convert.folders import write_model, write_tokenizer
from tests.golden.files import load_golden
from tests.golden.qwen2vl import cases as qwen2vl
from tests.vision import vision_model

CASES = ["qwen2", "qwen25"]


def metadata(case: str, **changes: Any) -> dict[str, Any]:
    return metadata_of(
        find("qwen2vl"), normalize({**load_golden("qwen2vl", case).config, **changes})
    )


@pytest.mark.parametrize("case", CASES)
def test_both_spellings_of_a_config_say_the_same(case: str):
    golden = load_golden("qwen2vl", case)
    published, saved = (
        metadata_of(find("qwen2vl"), normalize(c)) for c in (golden.config, golden.saved_config)
    )
    assert published == saved
    assert published["qwen2vl.rope.dimension_sections"] == [2, 3, 3, 0]


@pytest.mark.parametrize("case", CASES)
def test_both_spellings_of_names_and_keys_load(case: str):
    golden = load_golden("qwen2vl", case)
    changes = ("visual.", "model.visual."), ("model.", "model.language_model.")
    weights = {
        next((new + n.removeprefix(old) for old, new in changes if n.startswith(old)), n): w
        for n, w in golden.weights().items()
    }
    usual, other = source_of(golden), from_hf(find("qwen2vl"), golden.saved_config, weights)
    assert other.tensors.keys() == usual.tensors.keys()
    assert all(bytes(other.data(n)) == bytes(usual.data(n)) for n in usual.tensors)


@pytest.mark.parametrize(
    ("listed", "depth", "interval"),
    [([7, 15, 23, 31], 32, 8), ([1, 3], 4, 2), ([7, 15], 4, 5), ([2], 4, 3)],
)
def test_layers_that_see_all(listed: list[int], depth: int, interval: int):
    vision = load_golden("qwen2vl", "qwen25").config["vision_config"]
    changed = {**vision, "fullatt_block_indexes": listed, "depth": depth}
    found = metadata("qwen25", vision_config=changed)
    assert found["qwen2vl.vision.n_wa_pattern"] == interval


@pytest.mark.parametrize("listed", [[0, 3], [1, 2], [1, 3, 4]])
def test_irregular_layers_are_refused(listed: list[int]):
    vision = load_golden("qwen2vl", "qwen25").config["vision_config"]
    with pytest.raises(Error, match="only regular intervals"):
        metadata("qwen25", vision_config={**vision, "fullatt_block_indexes": listed, "depth": 6})


# As published folders say it, in the older names of the numbers of pixels, for patches of 4.
PREPARED = {
    "min_pixels": 128,
    "max_pixels": 3072,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}


def folder_of(case: str, folder: Path, **prepared: Any) -> Path:
    """A Hugging Face folder whose vocabulary has the special tokens."""
    golden = load_golden("qwen2vl", case)
    write_model(folder, golden.config, golden.weights())
    write_tokenizer(folder, qwen2vl.START)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    named = sorted((token, text) for text, token in qwen2vl.SPECIAL.items())
    tokenizer.add_special_tokens([text for _, text in named])
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {k: v for k, v in {**PREPARED, **prepared}.items() if v is not None}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_files_compute_what_the_folder_does(case: str, tmp_path: Path):
    """In one file, and in the two that llama.cpp reads, under the names of its converter."""
    folder = folder_of(case, tmp_path / "folder")
    one, text, mmproj = (tmp_path / f"{name}.gguf" for name in ("one", "text", "mmproj"))
    convert(folder, one)
    convert(folder, text, mmproj=mmproj)
    prompt = [3, 4, Image.fromarray(np.arange(48 * 32 * 3, dtype=np.uint8).reshape(48, 32, 3)), 5]
    options: dict[str, Any] = {"kv_type": "f32", "context_length": 64, "threads": 1}
    found = []
    for source in (folder, open_gguf(one), open_gguf(text, mmproj)):
        with ggmodel.load(source, **options) as model:
            found.append(model.logits(prompt))
            assert found[-1].shape[0] == 3 + 2 + 4 * 6  # rows of 8 x 8 pixels, and their frame
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    with open_gguf(mmproj) as file:
        keys = {k.removeprefix("clip."): v for k, v in file.metadata.items()}
        names = {name for name in file.tensors if ".blk." not in name or ".blk.0." in name}
    second = case == "qwen25"
    assert keys["projector_type"] == ("qwen2.5vl_merger" if second else "qwen2vl_merger")
    assert keys["use_silu"] if second else not keys["use_gelu"]
    assert keys.get("vision.n_wa_pattern") == (2 if second else None)
    assert (keys["vision.image_min_pixels"], keys["vision.image_max_pixels"]) == (128, 3072)
    ends = ("weight",) if second else ("weight", "bias")
    linear = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down")
    layer = {
        f"{name}.{end}" for name in (*linear, *["ffn_gate"] * second) for end in ("weight", "bias")
    }
    layer |= {f"{norm}.{end}" for norm in ("ln1", "ln2") for end in ends}
    assert names == (
        {f"v.blk.0.{name}" for name in layer}
        | {f"v.post_ln.{end}" for end in ends}
        | {"v.patch_embd.weight", "v.patch_embd.weight.1"}
        | {f"mm.{n}.{end}" for n in (0, 2) for end in ("weight", "bias")}
    )


@pytest.mark.parametrize(
    "changes", [{"patch_size": 8}, {"merge_size": 4}, {"temporal_patch_size": 4}]
)
def test_another_preparation_than_the_tower_takes_is_refused(
    changes: dict[str, int], tmp_path: Path
):
    with pytest.raises(Error, match=f"preprocessor:{next(iter(changes))}"):
        ggmodel.load(folder_of("qwen2", tmp_path, **changes), context_length=64)


@pytest.mark.parametrize("case", CASES)
def test_pictures_become_patches_of_two_frames_alike(case: str):
    with ggmodel.load(source_of(load_golden("qwen2vl", case)), context_length=64) as model:
        pixels = np.random.default_rng(3).integers(0, 256, (64, 96, 3), np.uint8)
        found = vision_model(model).preprocess(Image.fromarray(pixels))
        assert found.data["image_grid_thw"] == (1, 16, 24)
        patches = found.values.reshape(-1, 3, 2, 16)
        assert (patches[:, :, 0] == patches[:, :, 1]).all()
        h = model.model.config
        scaled = (pixels / 255 - h.image_mean) / h.image_std
        # Patches of the first square, then the first of the second one.
        for n, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)]):
            square = scaled[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            want = square.transpose(2, 0, 1).reshape(3, 16)
            np.testing.assert_allclose(patches[n, :, 0], want, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_prompts_with_pictures(case: str):
    with ggmodel.load(source_of(load_golden("qwen2vl", case)), context_length=256) as model:
        (seen,) = model.embeddings(Image.new("RGB", (96, 64)))
        inputs: Any = vision_model(model).image_inputs([seen])
        assert [one.token for one in inputs[:2]] == [151652, 151655]
        assert inputs[-1].token == 151653 and len(inputs) == len(seen) + 2 == 8 * 12 + 2
        assert seen.data == (1, 8, 12)


@pytest.mark.parametrize(
    ("grid", "shape", "shown"),
    [
        ([1, 4], (16, 96), r"image_grid_thw is \[1, 4\]; give whole numbers \[3\]"),
        ([1, 3, 4], (12, 96), "frames, rows and columns of patches in multiples of 2"),
        ([1, 4, 4], (12, 96), r"pixels \[12, 96\] for a grid of \[1, 4, 4\]"),
        ([1, 4, 4], (16, 95), r"\[16, 95\]; this model takes \[patches, 96\]"),
    ],
)
def test_pixels_that_do_not_fit(grid: list[int], shape: tuple[int, ...], shown: str):
    with (
        ggmodel.load(source_of(load_golden("qwen2vl", "qwen2")), context_length=64) as model,
        pytest.raises(PromptError, match=shown),
    ):
        model.encode_image(np.zeros(shape, np.float32), image_grid_thw=grid)


def test_a_strip_is_refused():
    with (
        ggmodel.load(source_of(load_golden("qwen2vl", "qwen2")), context_length=64) as model,
        pytest.raises(ImageError, match="more than 200 times as long as wide"),
    ):
        model.generate([Image.new("RGB", (1, 3000)), 5], max_tokens=1)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"vision.attention.head_count": 3}, "head_count is 3; it must divide 8.0"),
        ({"vision.window_size": 7}, "windows of 7 pixels for squares of"),
        ({"vision.image_min_pixels": 1 << 30}, "min_pixels is 1073741824; it must be .* or less"),
    ],
)
def test_impossible_towers(changes: dict[str, int], shown: str):
    source = source_of(load_golden("qwen2vl", "qwen25"))
    source.metadata = {**source.metadata, **{f"qwen2vl.{k}": v for k, v in changes.items()}}
    with pytest.raises(ConfigError, match=shown):
        ggmodel.load(source, context_length=64)


def test_windows_are_cut_at_the_edges():
    cells, lengths = vision_windows(3, 5, 2)
    assert sorted(cells.tolist()) == list(range(15))
    assert lengths == [4, 4, 2, 2, 2, 1]


def test_frames_of_a_video_see_only_themselves():
    """The tower takes grids of several frames; nothing of one reaches another, in either order."""
    with ggmodel.load(source_of(load_golden("qwen2vl", "qwen25")), context_length=64) as model:
        values = np.random.default_rng(1).normal(size=(2 * 24, 96)).astype(np.float32)
        (both,) = model.encode_image(values, image_grid_thw=[2, 4, 6])
        for frame in (0, 1):
            (one,) = model.encode_image(values[24 * frame :][:24], image_grid_thw=[1, 4, 6])
            assert nmse(both.rows[6 * frame :][:6], one.rows) < 1e-12
