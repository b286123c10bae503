"""InternVL: how a picture becomes tiles, what stands around them, and both namings of folders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.convert.keys import recorded
from ggmodel.errors import ConfigError, LoadError, PromptError
from ggmodel.gguf_file import MemorySource
from ggmodel.image import nearest_grid
from ggmodel.model import find
from tests.golden.files import load_golden
from tests.golden.internvl import cases
from tests.image.noise import noise
from tests.models.words import Words

SIDE = 16
EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", "context_length": 256}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # as published


def source(case: str = "qwen2", **changes: Any) -> Any:
    golden = load_golden("internvl", case)
    return from_hf(find("internvl"), {**golden.config, **changes}, golden.weights())


@pytest.mark.parametrize(
    ("size", "least", "most", "grid"),
    [
        ((448, 448), 1, 12, (1, 1)),
        ((449, 448), 1, 12, (1, 1)),
        ((1344, 896), 1, 12, (2, 3)),
        ((300, 200), 1, 12, (2, 3)),  # small ones are enlarged
        ((3000, 100), 1, 12, (1, 12)),
        ((100, 3000), 1, 12, (12, 1)),
        ((640, 480), 1, 12, (3, 4)),
        ((640, 480), 1, 6, (2, 3)),
        ((300, 200), 1, 4, (1, 1)),  # as near as (1, 2) and (2, 2), which are too large for it
        ((600, 400), 1, 4, (1, 2)),
        ((1200, 800), 1, 4, (2, 2)),
        ((500, 500), 4, 9, (2, 2)),
    ],
)
def test_grids(size: tuple[int, int], least: int, most: int, grid: tuple[int, int]):
    """As transformers 5.23 chooses them (GotOcr2ImageProcessorPil)."""
    assert nearest_grid(size, 448, least, most) == grid


def test_no_grid_has_fewer_tiles_than_the_least():
    with pytest.raises(ConfigError, match="grids of 5 to 4 tiles"):
        nearest_grid((10, 10), SIDE, 5, 4)


def model_of(**changes: Any) -> Any:
    model: Any = object.__new__(find("internvl"))
    config = {"side": SIDE, "resample": "bicubic", "least_tiles": 1, "most_tiles": 12}
    config |= {"image_mean": MEAN, "image_std": STD, **changes}
    object.__setattr__(model, "config", SimpleNamespace(**config))
    object.__setattr__(model, "read_tokenizer", lambda: None)
    return model


@pytest.mark.parametrize("size", [(37, 54), (70, 80), (14, 102), (20, 20)])
def test_tiles_and_a_view_of_the_whole(size: tuple[int, int]):
    """Pillow cuts the same squares; its bicubic differs from torchvision's by some levels of 255.
    With Pillow's own resizing all pixels are those of GotOcr2ImageProcessorPil to 3e-7."""
    picture = noise(*size)
    found = model_of().preprocess(picture).values
    rows, columns = nearest_grid(size, SIDE, 1, 12)
    large = picture.resize((columns * SIDE, rows * SIDE), Image.Resampling.BICUBIC)
    boxes = [(c * SIDE, r * SIDE) for r in range(rows) for c in range(columns)]
    views = [large.crop((x, y, x + SIDE, y + SIDE)) for x, y in boxes]
    if len(views) > 1:
        views.append(picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    wanted = np.stack([np.asarray(view, np.float32).transpose(2, 0, 1) for view in views])
    levels = (found * np.reshape(STD, (3, 1, 1)) + np.reshape(MEAN, (3, 1, 1))) * 255
    assert found.shape == (len(views), 3, SIDE, SIDE)
    assert abs(levels - wanted).max() < 4


def test_a_picture_stands_between_two_tokens():
    with ggmodel.load(source(), **EXACT) as model:
        seeing: Any = model.model
        seeing.tokenizer = Words(cases.SPECIAL)
        one = model.embeddings(noise(40, 20), "image")
        laid = [x.token for x in seeing.image_inputs(one)]
    # Two tiles and a view of the whole, 4 rows each.
    assert laid == [cases.BEGIN, *[cases.IMAGE] * 12, cases.END]
    usual = [x.token for x in model_of().image_inputs(one)]
    assert usual == [151665, *[151667] * 12, 151666]  # as in Qwen 2.5's vocabulary


def test_folders_of_either_naming():
    """transformers saves `vision_tower`, OpenGVLab has published `model.vision_tower`, too."""
    golden = load_golden("internvl", "qwen3")
    old, new = "language_model.model.", "model.language_model."
    weights = {name.replace(old, new): x for name, x in golden.weights().items()}
    parts = ("vision_tower.", "multi_modal_projector.")
    renamed = {f"model.{n}" if n.startswith(parts) else n: x for n, x in weights.items()}
    renamed["lm_head.weight"] = renamed.pop("language_model.lm_head.weight")
    assert not renamed.keys() & (golden.weights().keys() - {"lm_head.weight"})
    with ggmodel.load(source("qwen3"), **EXACT) as model:
        wanted = model.logits(golden.prompt.tolist())
    with ggmodel.load(from_hf(find("internvl"), golden.config, renamed), **EXACT) as model:
        assert np.array_equal(model.logits(golden.prompt.tolist()), wanted)


def test_pixels_that_are_no_tiles():
    with ggmodel.load(source(), **EXACT) as model:
        for shape in ((2, 3, 16, 12), (2, 1, 16, 16), (3, 16, 16)):
            with pytest.raises(PromptError, match=r"\[tiles, 3, 16, 16\]"):
                model.encode_media("image", np.zeros(shape, np.float32))


def test_each_norm_of_the_tower_is_computed():
    rows = {}
    for without in ((), ("k",), ("q",), ("q", "k")):
        made = source("qwen3")
        names = tuple(f"attn_{one}_norm.weight" for one in without)
        kept = {n: t for n, t in made.tensors.items() if not (n[:2] == "v." and n.endswith(names))}
        weights = {n: (t.dtype, t.shape, bytes(made.data(n))) for n, t in kept.items()}
        with ggmodel.load(MemorySource(dict(made.metadata), weights), **EXACT) as model:
            rows[without] = model.embeddings(noise(16, 16), "image")[0].rows.tobytes()
    assert len({*rows.values()}) == 4


def test_each_kind_of_text_has_the_defaults_of_its_own():
    heads = {case: recorded(cases.CASES[case]) for case in cases.CASES}
    widths = {case: (keys or {}).get("text_config.head_dim") for case, keys in heads.items()}
    assert widths == {"qwen2": None, "qwen3": 128, "experts": None}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"downsample_ratio": 0.3}, ConfigError, "downsample_ratio is 0.3"),
        ({"vision_feature_layer": -2}, ConfigError, "vision_feature_layer is -2"),
        ({"vision_feature_select_strategy": "full"}, ConfigError, "select_strategy is 'full'"),
        ({"image_size": [16, 32]}, ConfigError, "image_size is .*supported: squares"),
        ({"patch_size": [4, 2]}, ConfigError, "patch_size is .*supported: squares"),
        ({"use_mask_token": True}, LoadError, "use_mask_token"),
    ],
)
def test_unsupported_values_are_named(changes: dict[str, Any], error: type[Exception], said: str):
    golden = load_golden("internvl", "qwen2")
    tower = golden.config["vision_config"]
    inside = {key: value for key, value in changes.items() if key in tower}
    given = {**changes, "vision_config": {**tower, **inside}} if inside else changes
    with pytest.raises(error, match=said):
        ggmodel.load(source(**given), context_length=64)
