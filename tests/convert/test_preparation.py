"""preprocessor_config.json and the files beside it as a source of hyperparameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert import convert
from ggmodel.convert.checkpoint_source import CheckpointSource
from ggmodel.convert.from_hf import read_preparation, with_preparation
from ggmodel.convert.keys import reference_table
from ggmodel.errors import ConfigError, FormatError, LoadError
from ggmodel.gguf_file import open_gguf
from ggmodel.model.config import descend
from tests.convert.folders import write_golden
from tests.vision import vision_model

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
SIZE = {"gemma3": 24, "llama4": 24, "mllama": 8}
UNUSUAL = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7], "resample": 3}


def folder(path: Path, arch: str, said: dict[str, Any], file: str = PREPROCESSOR) -> Path:
    """A golden model, and how it prepares pictures; of the size that its tower takes."""
    path, golden = write_golden(path, arch, "images")
    side = golden.config["vision_config"]["image_size"]
    size = {"height": side, "width": side}
    tiles = {"max_image_tiles": golden.config["vision_config"].get("max_num_tiles")}
    (path / file).write_text(json.dumps({"size": size, **tiles, **said}))
    return path


def seen(source: Any) -> np.ndarray:
    """The pixels that a model makes of a picture."""
    picture = Image.fromarray(np.arange(60 * 50 * 3, dtype=np.uint8).reshape(50, 60, 3))
    with ggmodel.load(source, context_length=64) as model:
        return vision_model(model).preprocess(picture).values


@pytest.mark.parametrize("arch", ["gemma3", "llama4", "mllama"])
def test_what_a_folder_says_is_done_and_written(tmp_path: Path, arch: str):
    path = folder(tmp_path / "model", arch, UNUSUAL)
    pixels = seen(path)
    (path / PREPROCESSOR).unlink()
    assert np.abs(seen(path) - pixels).max() > 0.1
    folder(path, arch, UNUSUAL)
    convert(path, tmp_path / "whole.gguf")
    np.testing.assert_array_equal(seen(tmp_path / "whole.gguf"), pixels)
    with open_gguf(tmp_path / "whole.gguf") as file:
        assert file.metadata[f"{arch}.vision.resample"] == "bicubic"
    if arch == "mllama":  # which has no file of its own for vision
        return
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    convert(path, text, mmproj=mmproj)
    np.testing.assert_array_equal(seen(open_gguf(text, mmproj)), pixels)
    with open_gguf(mmproj) as file:
        assert list(file.metadata["clip.vision.image_mean"]) == pytest.approx([0.1, 0.2, 0.3])
        assert list(file.metadata["clip.vision.image_std"]) == pytest.approx([0.5, 0.6, 0.7])
    with open_gguf(text) as file:
        assert not [key for key in file.metadata if "vision" in key]


def test_files_have_the_usual_values_where_a_folder_says_nothing(tmp_path: Path):
    path, _ = write_golden(tmp_path / "gemma3", "gemma3", "images")
    convert(path, tmp_path / "text.gguf", mmproj=tmp_path / "mm.gguf")
    with open_gguf(tmp_path / "mm.gguf") as file:
        assert list(file.metadata["clip.vision.image_mean"]) == [0.5] * 3
        assert "clip.vision.resample" not in file.metadata


@pytest.mark.parametrize(
    ("arch", "said", "message"),
    [
        ("gemma3", {"do_pan_and_scan": True}, "preprocessor:do_pan_and_scan is True; supported: n"),
        ("gemma3", {"do_normalize": False}, "do_normalize is False; supported: True"),
        ("gemma3", {"rescale_factor": 0.5}, "rescale_factor is 0.5; supported: 0.0039"),
        ("gemma3", {"size": {"height": 7, "width": 24}}, "size.height is 7; supported: 24"),
        ("gemma3", {"size": {"shortest_edge": 24}}, "size.shortest_edge is 24; supported: none"),
        ("gemma3", {"size": 24}, "preprocessor:size is 24; supported:"),
        ("gemma3", {"do_center_crop": True}, "do_center_crop is True"),
        ("llama4", {"resize_to_max_canvas": True}, "resize_to_max_canvas is True"),
        ("mllama", {"max_image_tiles": 3}, "max_image_tiles is 3"),
    ],
)
def test_what_a_model_cannot_do_is_refused_by_name(
    tmp_path: Path, arch: str, said: dict[str, Any], message: str
):
    path = folder(tmp_path / "model", arch, said)
    with pytest.raises(LoadError, match=message):
        ggmodel.load(path)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"resample": 4}, r"resample is 4; supported: 1 \(lanczos\), 2 \(bilinear\), 3 \(bicubic"),
        ({"resample": [3]}, r"resample is \[3\]; supported"),
        ({"image_mean": [0.5]}, r"image_mean is \[0.5\]; it is a number for red, green, blue"),
        ({"image_mean": ["a", "b", "c"]}, "image_mean is"),
        ({"image_std": [0.5, 0.5, 0]}, r"image_std is \[0.5, 0.5, 0"),
        ({"image_mean": 0.5}, r"image_mean is \[0.5\]"),
    ],
)
def test_wrong_values(tmp_path: Path, said: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ggmodel.load(folder(tmp_path / "model", "gemma3", said))


def test_a_file_that_is_no_json(tmp_path: Path):
    path = folder(tmp_path / "model", "gemma3", {})
    (path / PREPROCESSOR).write_text("{")
    with pytest.raises(FormatError, match=PREPROCESSOR):
        CheckpointSource.open(path)
    (path / PREPROCESSOR).unlink()
    (path / PROCESSOR).write_text('{"image_processor": 3}')
    with pytest.raises(FormatError, match="image_processor should be an object"):
        CheckpointSource.open(path)


# Which file, and which of transformers' classes reads it.


def written(path: Path, **files: dict[str, Any]) -> dict[str, dict[str, Any]]:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return read_preparation(path)


def test_a_part_of_the_common_file_comes_first(tmp_path: Path):
    assert read_preparation(tmp_path) == {}
    old = {"a": 1, "none": None}
    found = written(tmp_path, preprocessor_config=old)
    assert found == {"preprocessor:": {"a": 1}, "features:": {"a": 1}, "video:": {"a": 1}}
    found = written(tmp_path, video_preprocessor_config={"a": 2})
    assert found["video:"] == {"a": 2}
    parts = {"image_processor": {"a": 3}, "video_processor": {"a": 4}, "patch": 5}
    found = written(tmp_path, processor_config=parts)
    assert found["preprocessor:"] == {"a": 3}
    assert found["video:"] == {"a": 4}
    assert found["features:"] == {"a": 1}
    assert found["processor:"] == {"patch": 5}


def test_a_model_that_only_hears(tmp_path: Path):
    found = written(tmp_path, processor_config={"feature_extractor": {"sampling_rate": 16000}})
    assert found["preprocessor:"] == found["features:"] == {"sampling_rate": 16000}
    assert descend(found, "preprocessor:sampling_rate") == 16000


@pytest.mark.parametrize(
    "name", ["Gemma3ImageProcessor", "Gemma3ImageProcessorFast", "Gemma3ImageProcessorPil", "Else"]
)
def test_keys_and_defaults_are_those_of_transformers_class(name: str):
    hf = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "preprocessor:": {"image_processor_type": name, "size": {"shortest_edge": 5}},
    }
    config, reference = with_preparation(hf)
    assert config["preprocessor:"]["image_mean"] == [0.5] * 3
    assert config["preprocessor:"]["size"] == {"shortest_edge": 5}, "not mixed with the default"
    assert reference["preprocessor:size.height"] == 224
    assert reference["preprocessor:size.shortest_edge"] is None
    assert "preprocessor:image_processor_type" not in reference


def test_without_a_known_class_nothing_is_assumed():
    hf = {"architectures": ["Own"], "preprocessor:": {"image_processor_type": "Own", "a": 1}}
    assert with_preparation(hf) == (hf, {})


def test_processors_of_served_models_are_recorded():
    table = reference_table("processors")
    for processors in table["of"].values():
        assert all(name in table["keys"] for name in processors)
    mllama = table["keys"]["MllamaImageProcessor"]
    assert (mllama["max_image_tiles"], mllama["resample"]) == (4, 2)
    assert mllama["rescale_factor"] == 1 / 255


def test_a_model_of_text_leaves_pictures_to_others(tmp_path: Path):
    """The text of a model that also sees is served alone."""
    path, _ = write_golden(tmp_path / "model", "gemma3n", "published")
    size = {"height": 768, "width": 768}
    (path / PREPROCESSOR).write_text(
        json.dumps({"size": size, "resample": 2, "do_normalize": False})
    )
    convert(path, tmp_path / "text.gguf")
