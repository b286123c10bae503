"""Qwen3-VL's tower against transformers, and its files: names, both layouts, pictures of any size.
`test_runs.py` has every way of computing its goldens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert import convert, from_hf
from ggmodel.errors import ConfigError, ImageError, LoadError, PromptError
from ggmodel.gguf_file import open_gguf
from ggmodel.model import find_hf
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse, source_of
from tests.conftest import Vary
from tests.convert.folders import write_golden
from tests.golden.files import Golden, cases, load_golden
from tests.golden.qwen3vl import cases as qwen3vl
from tests.vision import vision_model

CASES = cases("qwen3vl")
# ggml's tanh GELU reads a table in F16.
TABLE = 1e-6
PREPARED = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "merge_size": qwen3vl.MERGE,
    "patch_size": qwen3vl.PATCH,
    "size": {"shortest_edge": 128, "longest_edge": 1024},
    "temporal_patch_size": 2,
}


def load(golden: Golden, source: Any = None, **options: Any) -> LoadedModel:
    given = {"kv_type": "f32", "flash_attention": "off", "threads": 1, **options}
    return ggmodel.load(source_of(golden) if source is None else source, **given)


@pytest.mark.parametrize("case", qwen3vl.CASES)
def test_files_are_sound(case: str):
    golden = load_golden("qwen3vl", case)
    assert set(CASES) == set(qwen3vl.CASES)
    assert golden.config == qwen3vl.CASES[case]
    for name, asked in golden.prompts.items():
        assert asked.parts != [] and name in qwen3vl.PROMPTS[case]
        assert np.isfinite(asked.logits).all()


@pytest.mark.parametrize("case", CASES)
def test_both_layouts_of_files(tmp_path: Path, case: str):
    folder, golden = write_golden(tmp_path / "hf", "qwen3vl", case)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPARED))
    one, text, tower = (tmp_path / f"{name}.gguf" for name in ("one", "text", "tower"))
    convert(folder, one, pre="gpt-2")
    convert(folder, text, pre="gpt-2", mmproj=tower)
    with open_gguf(tower) as file:
        assert file.metadata["clip.projector_type"] == "qwen3vl_merger"
        assert file.metadata["clip.use_gelu"] is True
        assert file.metadata["clip.vision.image_max_pixels"] == 1024
        stacked = golden.config["vision_config"].get("deepstack_visual_indexes", [])
        flags = list(file.metadata["clip.vision.is_deepstack_layers"])
        assert [i for i, said in enumerate(flags) if said] == sorted(stacked)
        names = {name for name in file.tensors if name.startswith("v.deepstack.")}
        assert {int(name.split(".")[2]) for name in names} == set(stacked)
        assert {"v.patch_embd.weight", "v.patch_embd.weight.1", "v.post_ln.bias"} <= set(
            file.tensors
        )
        assert {"v.position_embd.weight", "mm.0.weight", "mm.2.bias"} <= set(file.tensors)
    prompt = golden.prompt.tolist()
    picture = Image.fromarray(np.arange(24 * 16 * 3, dtype=np.uint8).reshape(24, 16, 3))
    asked = [*prompt[:4], picture, *prompt[4:8]]
    found = []
    for options in ({"source": one}, {"source": text, "mmproj": tower}):
        source = options.pop("source")
        with load(golden, source, **options) as model:
            model.model.tokenizer = SimpleNamespace(id_of_text=qwen3vl.SPECIAL.get)
            found.append(model.logits(asked))
            assert nmse(model.logits(prompt), golden.logits) < TABLE
    assert np.array_equal(*found)


def test_experts_lie_in_either_order():
    golden = load_golden("qwen3vl", "experts")
    want, weights = source_of(golden), golden.weights()
    turned = {n: w.swapaxes(1, 2) if ".experts." in n else w for n, w in weights.items()}
    got = from_hf(find_hf(golden.config["architectures"]), golden.config, turned)
    assert all(bytes(got.data(name)) == bytes(want.data(name)) for name in want.tensors)
    odd = {n: w[:, :5] if n.endswith("down_proj") else w for n, w in weights.items()}
    with pytest.raises(ConfigError, match="down_proj is"):
        from_hf(find_hf(golden.config["architectures"]), golden.config, odd)


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    golden = load_golden("qwen3vl", "images")
    config = {**golden.config, "preprocessor:": PREPARED}
    source = from_hf(find_hf(config["architectures"]), config, golden.weights())
    with load(golden, source) as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("size", "want"),
    [((16, 24), (16, 24)), ((17, 30), (16, 32)), ((300, 100), (48, 16)), ((2, 3), (16, 16))],
)
def test_pictures_keep_their_proportions(model: LoadedModel, size: Any, want: Any):
    pixels = vision_model(model).preprocess(Image.new("RGB", size, "red"))
    assert pixels.values.shape == (1, 3, want[1], want[0])


def test_a_picture_that_is_far_too_long(model: LoadedModel):
    with pytest.raises(ImageError, match="200 times as long as wide"):
        model.generate([5, Image.new("RGB", (402, 2)), 6], max_tokens=1)


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((1, 3, 16, 12), "12 × 16 pixels; both are multiples of 8"),
        ((3, 3, 16, 16), "1 or 2, 3, height, width"),
    ],
)
def test_pixels_that_are_no_grid(model: LoadedModel, shape: tuple[int, ...], shown: str):
    with pytest.raises(PromptError, match=shown):
        model.embeddings(np.zeros(shape, np.float32))


def test_patches_of_the_reference_are_pixels_again(model: LoadedModel):
    golden = load_golden("qwen3vl", "images")
    for picture in golden.pictures.values():
        inputs = qwen3vl.model_inputs(golden.config, [], [picture])
        again = model.model.reference_item(picture.kind, inputs, picture.data)
        assert np.array_equal(again.values, picture.pixels)


def test_a_graph_serves_pictures_of_one_shape(model: LoadedModel):
    first, second, other = (
        np.random.default_rng(n).integers(0, 256, (*size, 3), np.uint8)
        for n, size in enumerate([(16, 24), (16, 24), (24, 16)])
    )
    asked = [[5, Image.fromarray(picture), 6] for picture in (first, second, other, first)]
    model.model.tokenizer = SimpleNamespace(id_of_text=qwen3vl.SPECIAL.get)
    found = [model.logits(prompt) for prompt in asked]
    assert np.array_equal(found[0], found[3])
    for one in found[1:3]:
        assert nmse(one[-1], found[0][-1]) > 1e-6
    with load(load_golden("qwen3vl", "images"), model.source) as again:
        again.model.tokenizer = model.model.tokenizer
        assert np.array_equal(again.logits(asked[1]), found[1])


def test_more_rows_of_the_tower_than_layers_of_the_text(vary: Vary):
    golden = load_golden("qwen3vl", "images")
    source = source_of(golden)
    with pytest.raises(ConfigError, match="3 layers of the tower for a text of 3"):
        load(golden, vary(source, metadata={"qwen3vl.n_deepstack_layers": 3}))
    flags = {"qwen3vl.vision.is_deepstack_layers": [True, True, False]}
    with pytest.raises(LoadError, match=r"v\.deepstack\.1"):
        load(golden, vary(source, metadata=flags))
