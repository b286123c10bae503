"""Mistral 3, Ministral 3 and Pixtral: folders and files, pictures of any size, rows in prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert import convert
from ggmodel.errors import ConfigError, Error, LoadError, PromptError
from ggmodel.gguf_file import open_gguf
from ggmodel.model import Pixels
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import Cases, laid_out, nmse
from tests.convert.folders import add_special, write_golden
from tests.golden.files import HERE, Golden, load_golden
from tests.vision import vision_model

SEEING = ("images", "ministral", "pixtral")
SPECIAL = Cases(HERE / "mistral3").module.SPECIAL
IMAGE, BREAK, END = SPECIAL.values()
# As published beside Mistral Small 3.1, but for the sizes.
PREPROCESSOR = {
    "crop_size": None,
    "data_format": "channels_first",
    "default_to_square": True,
    "do_center_crop": None,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "PixtralImageProcessorFast",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "patch_size": 4,
    "processor_class": "PixtralProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"longest_edge": 48},
}
PROCESSOR = {
    "image_break_token": "[IMG_BREAK]",
    "image_end_token": "[IMG_END]",
    "image_token": "[IMG]",
    "patch_size": 4,
    "processor_class": "PixtralProcessor",
}


def folder(path: Path, case: str, **said: Any) -> tuple[Path, Golden]:
    """A checkpoint with special tokens and both files about pictures; `said` changes keys."""
    path, golden = write_golden(path, "mistral3", case)
    add_special(path, SPECIAL)
    merge = golden.config.get("spatial_merge_size", 1)
    files = {
        "preprocessor": dict(PREPROCESSOR),
        "processor": PROCESSOR | {"spatial_merge_size": merge},
    }
    for key, value in said.items():
        file, _, name = key.partition("__")
        files[file][name] = value
    for name, content in files.items():
        (path / f"{name}_config.json").write_text(json.dumps(content))
    return path, golden


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path, _ = folder(tmp_path_factory.mktemp("mistral3") / "model", "images")
    with ggmodel.load(path, kv_type="f32", context_length=128, parallel=4) as loaded:
        yield loaded


def noise(width: int, height: int, seed: int = 1) -> Image.Image:
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("case", SEEING)
def test_a_folder_and_its_files_compute_the_same(tmp_path: Path, case: str):
    path, golden = folder(tmp_path / "model", case)
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    convert(path, text, mmproj=mmproj)
    convert(path, tmp_path / "whole.gguf")
    for source in (path, tmp_path / "whole.gguf", open_gguf(text, mmproj)):
        with ggmodel.load(source, kv_type="f32") as loaded:
            for prompt in golden.prompts.values():
                assert nmse(loaded.logits(laid_out(loaded, golden, prompt)), prompt.logits) < 1e-8
    with open_gguf(mmproj) as file:
        keys = file.metadata
        assert keys["clip.projector_type"] == "pixtral"
        gelu = golden.config["vision_config"]["hidden_act"] == "gelu"
        assert keys["clip.use_gelu"] is gelu and ("clip.use_silu" in keys) is not gelu
        row = np.frombuffer(file.data("v.token_embd.img_break"), np.float32)
    name = next(n for n in golden.tensors if n.endswith("embed_tokens.weight"))
    np.testing.assert_array_equal(row, golden.weights()[name][12])


def test_text_alone_has_no_tower(tmp_path: Path):
    path, golden = write_golden(tmp_path / "model", "mistral3", "text")
    convert(path, tmp_path / "a.gguf")
    with open_gguf(tmp_path / "a.gguf") as file:
        assert not [name for name in file.tensors if name.startswith(("v.", "mm."))]
        assert file.metadata["mistral3.attention.temperature_scale"] == pytest.approx(0.1)
        assert file.metadata["mistral3.rope.scaling.yarn_log_multiplier"] == 1.0
    with ggmodel.load(tmp_path / "a.gguf", kv_type="f32") as loaded:
        assert nmse(loaded.logits(golden.prompt.tolist()), golden.logits) < 1e-8


@pytest.mark.parametrize(
    ("size", "wanted"),
    [  # as transformers 5.23's get_resize_output_image_size, by 48 and 8
        ((5, 3), (8, 8)),
        ((48, 48), (48, 48)),
        ((90, 60), (48, 32)),
        ((41, 48), (48, 48)),
        ((300, 2), (48, 8)),
        ((2, 300), (8, 48)),
        ((49, 47), (48, 48)),
    ],
)
def test_sizes_are_those_of_the_processor(
    model: LoadedModel, size: tuple[int, int], wanted: tuple[int, int]
):
    width, height = wanted
    assert vision_model(model).preprocess(noise(*size)).values.shape == (1, 3, height, width)


def test_each_row_of_a_picture_ends_with_a_break(model: LoadedModel):
    rows = model.encode_image(noise(24, 16))
    inputs = [i for i in vision_model(model).image_inputs(rows) if not isinstance(i, str)]
    assert [i.token for i in inputs] == [*[IMAGE] * 3, BREAK, *[IMAGE] * 3, END]
    assert [i.multimodal for i in inputs] == [rows[0], *[None] * 3, rows[1], *[None] * 3]


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((1, 3, 12, 16), "16 × 12 pixels; both are multiples of 8"),
        ((1, 3, 16, 20), "20 × 16 pixels; both are multiples of 8"),
        ((2, 3, 16, 16), r"\[2, 3, 16, 16\]; this model takes \[1, 3, height, width\]"),
    ],
)
def test_pixels_of_another_shape_are_refused(
    model: LoadedModel, shape: tuple[int, ...], shown: str
):
    with pytest.raises(PromptError, match=shown):
        model.encode_image(np.zeros(shape, np.float32))


def test_users_with_pictures_do_not_disturb_each_other(model: LoadedModel):
    """Same and other pictures, shared beginnings: at once as alone."""
    pictures = [noise(40, 24, seed) for seed in (1, 1, 2, 3)]
    prompts = [["AB", picture, text] for picture, text in zip(pictures, "CCDE", strict=True)]
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0}
    alone = [str(model.generate(prompt, **options)) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as users:
        texts = list(users.map(lambda prompt: str(model.generate(prompt, **options)), prompts))
    assert texts == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"processor__patch_size": 8}, "processor:patch_size is 8; supported: 4"),
        ({"processor__image_token": "<i>"}, "processor:image_token is '<i>'; supported"),
        ({"preprocessor__size": {"height": 48, "width": 48}}, "preprocessor:size.height is 48"),
        ({"preprocessor__do_resize": False}, "preprocessor:do_resize is False"),
    ],
)
def test_what_its_processor_cannot_do_is_refused(
    tmp_path: Path, said: dict[str, Any], message: str
):
    path, _ = folder(tmp_path / "model", "images", **said)
    with pytest.raises(LoadError, match=message):
        ggmodel.load(path)


def test_another_tower_of_a_llava_is_refused(tmp_path: Path):
    path, _ = write_golden(tmp_path / "model", "mistral3", "pixtral")
    config = json.loads((path / "config.json").read_text())
    config["vision_config"]["model_type"] = "clip_vision_model"
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="LLaVA with the tower 'clip_vision_model'; Pixtral's"):
        ggmodel.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("vision.attention.head_count", 3), ("vision.image_size", 4), ("vision.patch_size", 0)],
)
def test_numbers_that_do_not_fit(tmp_path: Path, key: str, value: int):
    source = golden_source(tmp_path, {f"mistral3.{key}": value})
    with pytest.raises(Error):
        ggmodel.load(source)


def golden_source(path: Path, changes: dict[str, Any]) -> Any:
    from ggmodel.gguf_file import MemorySource
    from ggmodel.workbench.golden import source_of

    source = source_of(load_golden("mistral3", "images"))
    made = {
        name: np.frombuffer(source.data(name), np.float32).reshape(info.shape[::-1])
        for name, info in source.tensors.items()
    }
    return MemorySource({**source.metadata, **changes}, made)


def test_a_graph_serves_all_pictures_of_its_size(model: LoadedModel):
    encoders = model.engine.images.encoders
    sizes = [(8, 40), (40, 16), (8, 40), (8, 40), (40, 16)]
    before = encoders.recorded, encoders.replayed
    for seed, size in enumerate(sizes, 100):
        pixels = vision_model(model).preprocess(noise(*size, seed)).values
        got = np.concatenate([part.compute() for part in model.encode_image(pixels)])
        with model.backend.new_context() as ctx, ctx.trace():
            made = vision_model(model).encode_multimodal(ctx, Pixels(pixels))
            tensors = [m.tensor for m in made if m.tensor is not None]
            outputs = tuple(tensors)
            ctx.forward(*outputs)
            with closing(model.backend.compile(ctx.graph, outputs)) as executable:
                executable.run(Pixels(pixels))
                want = [executable.value(t).reshape(-1, t.dim(0)).copy() for t in outputs]
        np.testing.assert_array_equal(got, np.concatenate(want))
    assert encoders.recorded - before[0] == 2
    assert encoders.replayed - before[1] == 3


def test_few_graphs_are_kept(model: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ggmodel.runner.engine.encoders._MOST_ENCODER_GRAPHS", 1)
    encoders = model.engine.images.encoders
    first = encoders.recorded
    for seed, size in enumerate([(48, 8), (8, 48), (48, 8)], 200):
        for part in model.encode_image(noise(*size, seed)):
            part.compute()
    assert encoders.recorded - first == 3, "the first was given up for the second"
