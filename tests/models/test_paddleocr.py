"""PaddleOCR-VL: how a page becomes patches, and the names and keys of its files."""

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
from ggmodel.models.paddleocr.vision import between, page_size
from ggmodel.workbench.golden import source_of
from tests.convert.folders import write_model, write_tokenizer
from tests.golden.files import load_golden
from tests.golden.paddleocr import cases as paddleocr
from tests.vision import vision_model

OPTIONS: dict[str, Any] = {"kv_type": "f32", "context_length": 64, "threads": 1}
# As the published folder says it, for patches of 4.
PREPARED = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "PaddleOCRVLImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "max_pixels": 3072,
    "merge_size": 2,
    "min_pixels": 128,
    "patch_size": 4,
    "processor_class": "PaddleOCRVLProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "temporal_patch_size": 1,
}


def folder_of(folder: Path, case: str = "pages", **prepared: Any) -> Path:
    """A Hugging Face folder whose vocabulary has the special tokens."""
    golden = load_golden("paddleocr", case)
    write_model(folder, golden.config, golden.weights())
    write_tokenizer(folder, paddleocr.START)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    named = sorted((token, text) for text, token in paddleocr.SPECIAL.items())
    tokenizer.add_special_tokens([text for _, text in named])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "preprocessor_config.json").write_text(json.dumps({**PREPARED, **prepared}))
    return folder


@pytest.mark.parametrize("case", list(paddleocr.CASES))
def test_both_spellings_say_the_same(case: str):
    """As published, and as transformers saves it: keys of the text, and names of tensors."""
    golden, cls = load_golden("paddleocr", case), find("paddleocr")
    published, saved = (
        metadata_of(cls, normalize(c)) for c in (golden.config, golden.saved_config)
    )
    assert published == saved
    changes = {"visual.": "model.visual.", "mlp_AR.": "model.projector."}
    changes["model."] = "model.language_model."
    weights = {
        next((new + n.removeprefix(old) for old, new in changes.items() if n.startswith(old)), n): w
        for n, w in golden.weights().items()
    }
    assert weights.keys() != golden.weights().keys()
    usual, other = source_of(golden), from_hf(cls, golden.saved_config, weights)
    assert other.tensors.keys() == usual.tensors.keys()
    assert all(bytes(other.data(n)) == bytes(usual.data(n)) for n in usual.tensors)


def test_what_is_published_and_unused_is_left_out():
    golden = load_golden("paddleocr", "pages")
    more = {
        f"visual.vision_model.{name}": np.ones((4, 4), np.float32)
        for name in ("head.probe", "embeddings.packing_position_embedding.weight")
    }
    found = from_hf(find("paddleocr"), golden.config, {**golden.weights(), **more})
    assert found.tensors.keys() == source_of(golden).tensors.keys()


def test_files_compute_what_the_folder_does(tmp_path: Path):
    """In one file, and in the two that llama.cpp reads, under the names of its converter."""
    folder = folder_of(tmp_path / "folder")
    one, text, mmproj = (tmp_path / f"{name}.gguf" for name in ("one", "text", "mmproj"))
    convert(folder, one)
    convert(folder, text, mmproj=mmproj)
    prompt = [3, 4, Image.fromarray(np.arange(48 * 32 * 3, dtype=np.uint8).reshape(48, 32, 3)), 5]
    found = []
    for source in (folder, open_gguf(one), open_gguf(text, mmproj)):
        with ggmodel.load(source, **OPTIONS) as model:
            found.append(model.logits(prompt))
            assert found[-1].shape[0] == 3 + 2 + 4 * 6  # rows of 8 x 8 pixels, and their frame
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    with open_gguf(mmproj) as file:
        keys = {k.removeprefix("clip."): v for k, v in file.metadata.items()}
        names = {name for name in file.tensors if ".blk." not in name or ".blk.0." in name}
    assert keys["projector_type"] == "paddleocr" and keys["use_gelu"]
    assert (keys["vision.image_min_pixels"], keys["vision.image_max_pixels"]) == (128, 3072)
    assert keys["vision.image_size"] == 55  # the root of the most pixels
    linear = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down", "ln1", "ln2")
    both = {f"v.blk.0.{name}" for name in linear} | {"v.post_ln", "v.patch_embd"}
    both |= {"mm.input_norm", "mm.1", "mm.2"}
    assert names == {f"{name}.{end}" for name in both for end in ("weight", "bias")} | {
        "v.position_embd.weight"
    }


# Height, width → height and width that transformers 5.23's `smart_resize` of
# image_processing_paddleocr_vl gives for squares of 28, and 384² to 1536² pixels.
SIZES = [
    (1000, 700, (1008, 700)),
    (20, 700, (84, 2296)),
    (3000, 16, (5264, 56)),
    (2200, 1700, (1736, 1344)),
    (100, 100, (392, 392)),
    (27, 27, (392, 392)),
]


@pytest.mark.parametrize(("height", "width", "want"), SIZES)
def test_sizes_of_pages(height: int, width: int, want: tuple[int, int]):
    h: Any = type("Config", (), {"cell": 28, "min_pixels": 384**2, "max_pixels": 1536**2})
    assert page_size((width, height), h) == want[::-1]


def test_a_size_in_a_message_is_that_of_the_picture():
    h: Any = type("Config", (), {"cell": 28, "min_pixels": 384**2, "max_pixels": 1536**2})
    with pytest.raises(ImageError, match="an image of 1 × 60000 pixels is more than 200 times"):
        page_size((1, 60_000), h)


def test_positions_between_learned_ones():
    taps, weights = between(4, 2)
    assert taps.tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]
    np.testing.assert_allclose(weights, [[0.25, 0.75, 0.25, 0.75], [0.75, 0.25, 0.75, 0.25]])
    taps, weights = between(5, 5)  # as many as there are: each is its own
    assert taps[0].tolist() == [0, 1, 2, 3, 4] and weights[0].tolist() == [1] * 5


def test_pages_become_pixels_and_rows():
    with ggmodel.load(source_of(load_golden("paddleocr", "pages")), **OPTIONS) as model:
        page = np.random.default_rng(3).integers(0, 256, (384, 400, 3), np.uint8)
        found = vision_model(model).preprocess(Image.fromarray(page))
        h = model.model.config
        scaled = (page.transpose(2, 0, 1) / 255 - np.reshape(h.image_mean, (3, 1, 1))) / np.reshape(
            h.image_std, (3, 1, 1)
        )
        np.testing.assert_allclose(found.values[0], scaled, atol=1e-5)
        (seen,) = model.embeddings(Image.fromarray(page))
        assert seen.data == (1, 48, 50) and len(seen) == 48 * 50
        inputs: Any = vision_model(model).image_inputs([seen])
        assert [one.token for one in inputs[:2]] == [101305, 100295]
        assert inputs[-1].token == 101306 and len(inputs) == len(seen) + 2


def test_patches_of_the_reference_are_pixels_again():
    golden = load_golden("paddleocr", "pages")
    with ggmodel.load(source_of(golden), **OPTIONS) as model:
        for picture in golden.pictures.values():
            inputs = paddleocr.model_inputs(golden.config, [], [picture])
            again = vision_model(model).reference_pixels(inputs, picture.data)
            assert np.array_equal(again.values, picture.pixels)


@pytest.mark.parametrize(
    ("shape", "shown"),
    [((2, 3, 8, 8), r"\[1, 3, height, width\]"), ((1, 3, 8, 12), "multiples of 8")],
)
def test_pixels_that_do_not_fit(shape: tuple[int, ...], shown: str):
    with (
        ggmodel.load(source_of(load_golden("paddleocr", "pages")), **OPTIONS) as model,
        pytest.raises(PromptError, match=shown),
    ):
        model.encode_image(np.zeros(shape, np.float32))


def test_a_strip_is_refused():
    with (
        ggmodel.load(source_of(load_golden("paddleocr", "pages")), **OPTIONS) as model,
        pytest.raises(ImageError, match="more than 200 times as long as wide"),
    ):
        model.generate([Image.new("RGB", (2000, 8)), 5], max_tokens=1)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"vision.attention.head_count": 3}, "head_count is 3; it must divide 8.0"),
        ({"vision.attention.head_count": 0}, "head_count is 0; it must divide 8.0"),
        ({"vision.image_min_pixels": 1 << 30}, "is 1073741824; it must be .* or less"),
    ],
)
def test_impossible_towers(changes: dict[str, int], shown: str):
    source = source_of(load_golden("paddleocr", "pages"))
    source.metadata = {**source.metadata, **{f"paddleocr.{k}": v for k, v in changes.items()}}
    with pytest.raises(ConfigError, match=shown):
        ggmodel.load(source, **OPTIONS)


@pytest.mark.parametrize(
    "changes", [{"patch_size": 8}, {"merge_size": 4}, {"temporal_patch_size": 2}]
)
def test_another_preparation_than_the_tower_takes_is_refused(
    changes: dict[str, Any], tmp_path: Path
):
    with pytest.raises(Error, match=f"preprocessor:{next(iter(changes))}"):
        ggmodel.load(folder_of(tmp_path, **changes), **OPTIONS)
