"""Gemma 4 with images against transformers; its text is tested in `test_text.py`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert import convert
from ggmodel.errors import ConfigError, PromptError, Unsupported
from ggmodel.model import Prepared
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import Golden, laid_out, nmse, source_of
from tests.convert.folders import write_golden
from tests.golden.files import GREEDY, load_golden
from tests.golden.gemma4.cases import SEEING, SPECIAL
from tests.vision import vision_model

TABLE = 1e-6  # ggml's GELU reads a table in F16
EXACT = 1e-10


class Special:
    id_of_text = staticmethod(SPECIAL.get)


def load(golden: Golden, **options: Any) -> LoadedModel:
    given: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", **options}
    model = ggmodel.load(source_of(golden), **given)
    named: Any = Special()
    model.model.tokenizer = named
    return model


@pytest.fixture(params=SEEING)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden("gemma4", request.param)


@pytest.mark.parametrize("flash_attention", ["off", "on"])
@pytest.mark.parametrize("batch_size", [512, 7])
def test_text_with_images(golden: Golden, flash_attention: str, batch_size: int):
    with load(golden, flash_attention=flash_attention, batch_size=batch_size) as model:
        for picture in golden.pictures.values():
            (seen,) = model.encode_image(picture.pixels)
            assert nmse(seen.rows, picture.rows) < TABLE
        for prompt in golden.prompts.values():
            given = laid_out(model, golden, prompt)
            assert nmse(model.logits(given), prompt.logits) < TABLE
            done = model.generate(given, max_tokens=GREEDY, temperature=0)
            assert done.tokens == prompt.greedy.tolist()


def test_without_ggml(golden: Golden):
    with load(golden, backend="reference") as model:
        for picture in golden.pictures.values():
            (seen,) = model.encode_image(picture.pixels)
            assert nmse(seen.rows, picture.rows) < EXACT
        prompt = golden.prompts["adjacent"]
        assert nmse(model.logits(laid_out(model, golden, prompt)), prompt.logits) < EXACT


def test_the_config_that_transformers_writes(golden: Golden):
    new = {**golden.saved_config, "vision_soft_tokens_per_image": 6}
    old, saved = (source_of(g) for g in (golden, _with(golden, new)))
    assert str(old.metadata) == str(saved.metadata)


def _with(golden: Golden, config: dict[str, Any]) -> Golden:
    from dataclasses import replace

    return replace(golden, config=config)


def test_users_at_once_get_what_each_gets_alone(golden: Golden):
    """Equal and other pictures behind equal beginnings, beyond the end of the context."""
    options: dict[str, Any] = {"context_length": 44, "batch_size": 24}
    prompts = [[4, "wide", 3, 5], [4, "wide", 3, 9], [4, "high", 3, 5], [4, 3, "strip", 5]]

    def answer(model: LoadedModel, parts: list[Any]) -> list[int]:
        items = [
            model.embeddings(golden.pictures[p].pixels) if isinstance(p, str) else p for p in parts
        ]
        return model.generate(items, max_tokens=40, temperature=0).tokens

    alone = []
    for prompt in prompts:
        with load(golden, **options) as model:
            alone.append(answer(model, prompt))
    with load(golden, parallel=4, **options) as model, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda prompt: answer(model, prompt), prompts)) == alone
        assert [answer(model, prompt) for prompt in prompts] == alone  # prefixes are reused


def test_rows_look_ahead_in_local_layers_alone():
    golden, usual = (load_golden("gemma4", name) for name in ("images_dense", "images"))
    with load(golden) as model:
        layers: Any = model.model.caches()
        assert [s.ahead for s in layers] == [True, True, False]
        assert model.model.bidirectional_images
    with load(usual) as model:
        assert not model.model.bidirectional_images


def test_both_files_of_llama_cpps_layout(golden: Golden, tmp_path: Any):
    folder, _ = write_golden(tmp_path / "hf", "gemma4", "images")
    convert(folder, tmp_path / "a.gguf", mmproj=tmp_path / "mmproj.gguf", pre="gpt-2")
    golden = load_golden("gemma4", "images")
    with ggmodel.load(tmp_path / "a.gguf", mmproj=tmp_path / "mmproj.gguf", kv_type="f32") as model:
        for picture in golden.pictures.values():
            (seen,) = model.encode_image(picture.pixels)
            # The projector is F16 there, and so are its inputs.
            assert nmse(seen.rows, picture.rows) < 1e-5


@pytest.mark.parametrize(
    ("size", "fitted"),
    [  # transformers' get_aspect_ratio_preserving_size(height, width, 16, 2520, 3)
        ((40, 60), (624, 960)),
        ((1000, 700), (960, 672)),
        ((1, 4000), (48, 13440)),
        ((300, 3), (8016, 48)),
        ((640, 480), (912, 672)),
        ((4032, 3024), (912, 672)),
    ],
)
def test_sizes_of_pictures(size: tuple[int, int], fitted: tuple[int, int]):
    with load(load_golden("gemma4", "images")) as model:
        net: Any = model.model
        net.config.patch, net.config.pool, net.config.soft_tokens = 16, 3, 280
        assert net.fitted(*size) == fitted


def test_a_picture_is_prepared():
    with load(load_golden("gemma4", "images")) as model:
        picture = Image.fromarray(np.arange(40 * 20 * 3, dtype=np.uint8).reshape(20, 40, 3))
        prepared = vision_model(model).preprocess(picture)
        assert prepared.values.shape == (1, 3, 8, 24)
        assert 0 <= prepared.values.min() < prepared.values.max() <= 1
        assert vision_model(model).largest_image == (48, 8)


@pytest.mark.parametrize("shape", [(12, 8), (8, 56), (24, 24), (0, 8)])
def test_pixels_that_do_not_fit(shape: tuple[int, int]):
    with load(load_golden("gemma4", "images")) as model:
        pixels = Prepared(np.zeros((1, 3, *shape), np.float32))
        context: Any = None
        with pytest.raises(PromptError, match="multiples of 8 of which there are at most 6"):
            vision_model(model).encode_multimodal(context, pixels)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "bidirectional": ({"text_config": {"use_bidirectional_attention": "all"}}, "'all'"),
    "rope": ({"vision_config": {"rope_parameters": {"rope_type": "yarn"}}}, "'yarn'"),
    "heads": ({"vision_config": {"head_dim": 32}}, "head_dim is 32; supported: 16"),
    "kv heads": ({"vision_config": {"num_key_value_heads": 2}}, "is 2; supported: 4"),
    "patches": ({"vision_config": {"patch_size": 8}}, "for patches of 8 × 8"),
    "positions": ({"vision_soft_tokens_per_image": 9}, "18 patches in a row have 16 positions"),
    "per layer": (
        {"text_config": {"per_layer_config": {"0": {"head_dim": 8}}}},
        "per_layer_config",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_configs_that_are_refused(name: str):
    changes, message = BAD[name]
    golden = load_golden("gemma4", "images")
    config = {**golden.config}
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    with pytest.raises((ConfigError, Unsupported, ggmodel.Error), match=message):
        ggmodel.load(source_of(_with(golden, config)))
