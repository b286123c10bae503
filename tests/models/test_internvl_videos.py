"""Videos of InternVL: which frames are seen, how they are prepared, and the text before each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

import ggmodel
from ggmodel.convert import convert
from ggmodel.errors import Error, PromptError, VideoError
from ggmodel.gguf_file import open_gguf
from ggmodel.model import Prepared
from ggmodel.nn import Clip
from ggmodel.runner import LoadedModel
from ggmodel.video import Video
from ggmodel.workbench.golden import source_of
from tests.convert.folders import write_model, write_tokenizer
from tests.golden.files import load_golden
from tests.golden.internvl import cases
from tests.models.test_internvl import EXACT, MEAN, SIDE, STD, model_of
from tests.models.words import Words

ROWS = 4  # of a frame


def film(frames: int, size: tuple[int, int] = (24, 20), rate: float = 2.0) -> Video:
    pixels = np.random.default_rng(frames).integers(0, 256, (frames, *size[::-1], 3), np.uint8)
    return Video(pixels, np.arange(frames) / rate)


def load(**options: Any) -> LoadedModel:
    model = ggmodel.load(source_of(load_golden("internvl", "qwen2")), **{**EXACT, **options})
    model.model.tokenizer = Words(cases.SPECIAL)  # type: ignore[assignment]
    return model


# Frames, their rate, how many are to be seen, or how many a second, and the numbers that
# `sample_frames` of transformers 5.23's InternVLVideoProcessor gives with torch.
SAMPLED = [
    (8, 2, 8, 2.0, [0, 1, 2, 3, 4, 5, 6, 7]),
    (9, 1.0, 8, 2.0, [0, 1, 2, 3, 5, 6, 7, 8]),
    (40, 10, 12, 2.0, [1, 5, 8, 11, 15, 18, 21, 25, 28, 31, 35, 38]),
    (48, 24, 8, 2.0, [3, 9, 15, 21, 27, 33, 39, 45]),
    (100, 30000 / 1001, 8, 2.0, [6, 18, 31, 43, 56, 68, 81, 93]),
    (301, 29.97, 8, 2.0, [18, 56, 94, 131, 169, 206, 244, 282]),
    (999, 60, 8, 2.0, [62, 187, 312, 437, 561, 686, 811, 936]),
    (48, 24, 0, 1.0, [12, 36]),
    (100, 30000 / 1001, 0, 2.0, [8, 25, 41, 58, 75, 91]),
    (999, 60, 0, 0.5, [62, 187, 312, 437, 561, 686, 811, 936]),
    # That processor refuses these.
    (3, 10, 8, 2.0, [0, 1, 2]),
    (1, 24, 8, 2.0, [0]),
    (5, 24, 0, 2.0, [2]),
]


@pytest.mark.parametrize(("frames", "rate", "number", "fps", "want"), SAMPLED)
def test_frames_of_a_video(frames: int, rate: float, number: int, fps: float, want: list[int]):
    model = model_of(video_max_frames=number, video_fps=fps)
    assert model.video_frames(frames, rate).tolist() == want


def test_a_frame_is_one_tile():
    """Stretched to it, as a picture for which no more is allowed."""
    model, two = model_of(most_tiles=1), film(2)
    found = model.prepare_video(Clip(two.frames, two.times))
    pictures = [model.preprocess(Image.fromarray(frame)).values[0] for frame in two.frames]
    assert found.values.shape == (2, 3, SIDE, SIDE) and not found.data
    assert np.array_equal(found.values, pictures)


def test_numbered_frames():
    """As InternVLProcessor writes them: text before each frame, and a line break between two."""
    with load() as model:
        inputs = model.model.video_inputs(model.embeddings(film(3), "video"))  # type: ignore[attr-defined]
    frame = [cases.BEGIN, *[cases.IMAGE] * ROWS, cases.END]
    told = [one if isinstance(one, str) else one.token for one in inputs]
    assert told == ["Frame1: ", *frame, "\nFrame2: ", *frame, "\nFrame3: ", *frame]


def test_a_video_that_is_too_long_for_the_context():
    with load(context_length=16) as model:
        with pytest.raises(VideoError, match=r"8 frames of 16 × 16.*32 rows.*which has 16"):
            model.generate([3, film(12), 5], max_tokens=1)
        assert not model.engine.images.nbytes


@pytest.mark.parametrize("shape", [(2, 3, 16, 12), (2, 1, 16, 16), (3, 16, 16), ()])
def test_pixels_that_are_no_frames(shape: tuple[int, ...]):
    with load() as model:
        with pytest.raises(PromptError, match=r"takes \[frames, 3, 16, 16\]"):
            model.encode_media("video", Prepared(np.zeros(shape, np.float32)))
        with pytest.raises(PromptError, match="data named 'times'; this model takes none"):
            model.encode_media("video", np.zeros((1, 3, 16, 16), np.float32), times=[1.0])


@pytest.mark.parametrize("number", [1, 8, 0])
def test_the_largest_video_takes_no_memory(number: int):
    model = model_of(video_max_frames=number, loaded_context=64, rows=ROWS)
    values = model.largest_video().values
    assert len(values) == (number or 16) and not any(values.strides)


# As a folder of InternVL 3 says it of pictures, but for a small tower.
SEEN = {
    "crop_to_patches": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": MEAN,
    "image_processor_type": "GotOcr2ImageProcessorFast",
    "image_std": STD,
    "max_patches": 12,
    "min_patches": 1,
    "processor_class": "InternVLProcessor",
    "resample": 3,
    "rescale_factor": 1 / 255,
    "size": {"height": SIDE, "width": SIDE},
}
# As one of InternVL 3.5 says it of videos, by the defaults of transformers' class.
UNSET = {
    "crop_size": None,
    "do_center_crop": None,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "do_sample_frames": False,
    "fps": None,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "initial_shift": True,
    "num_frames": None,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "return_metadata": False,
    "size": {"height": 384, "width": 384},
    "video_processor_type": "InternVLVideoProcessor",
}
FITTING = {**UNSET, "size": SEEN["size"], "image_mean": MEAN, "image_std": STD}


def folder_of(path: Path, watched: dict[str, Any] | None, **tower: Any) -> Path:
    """
    Args:
        tower: other hyperparameters of it.
    """
    golden = load_golden("internvl", "qwen2")
    config = {**golden.config, "vision_config": {**golden.config["vision_config"], **tower}}
    write_model(path, config, golden.weights())
    write_tokenizer(path, cases.IMAGE)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<IMG_CONTEXT>", "<img>", "</img>", "<video>"])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "preprocessor_config.json").write_text(json.dumps(SEEN))
    if watched is not None:
        (path / "video_preprocessor_config.json").write_text(json.dumps(watched))
    return path


@pytest.mark.parametrize(
    ("said", "frames", "fps"),
    [
        (None, 8, 2.0),
        (UNSET, 8, 2.0),
        (FITTING, 8, 2.0),
        ({**FITTING, "num_frames": 5}, 5, 2.0),
        ({**FITTING, "fps": 3}, 0, 3.0),
        ({**FITTING, "fps": 3, "num_frames": 5}, 5, 3.0),
    ],
)
def test_folders_and_their_files_see_the_same(
    said: dict[str, Any] | None, frames: int, fps: float, tmp_path: Path
):
    folder = folder_of(tmp_path / "folder", said)
    one, text, mmproj = (tmp_path / f"{name}.gguf" for name in ("one", "text", "mmproj"))
    convert(folder, one)
    convert(folder, text, mmproj=mmproj)
    found = []
    for given in (folder, open_gguf(one), open_gguf(text, mmproj)):
        with ggmodel.load(given, **EXACT) as model:
            h = model.model.config
            assert (h.video_max_frames, h.video_fps) == (frames, fps)
            assert h.image_mean == pytest.approx(MEAN)
            found.append(model.logits([3, film(3), 5]))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ({**FITTING, "size": {"height": SIDE, "width": 20}}, "video:size.width"),
        ({**FITTING, "image_mean": UNSET["image_mean"]}, "video:image_mean"),
        ({**FITTING, "image_std": UNSET["image_std"]}, "video:image_std"),
        ({**FITTING, "resample": 2}, "video:resample"),
        ({**FITTING, "initial_shift": False}, "video:initial_shift"),
        ({**UNSET, "size": {"height": 320, "width": 320}}, "video:size.height"),
        ({**UNSET, "image_mean": [0.9] * 3}, "video:size.height"),
        ({**UNSET, "image_std": STD}, "video:size.height"),
    ],
)
def test_another_preparation_than_the_tower_takes(said: dict[str, Any], key: str, tmp_path: Path):
    with pytest.raises(Error, match=key):
        ggmodel.load(folder_of(tmp_path, said), **EXACT)


def test_frames_of_another_mean_for_a_tower_of_the_default_size(tmp_path: Path):
    folder = folder_of(tmp_path, UNSET, image_size=[384, 384])
    pictures = {**SEEN, "size": UNSET["size"]}
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures))
    with pytest.raises(Error, match="video:image_mean"):
        ggmodel.load(folder, **EXACT)


def test_ways_to_show_a_video(tmp_path: Path):
    clip = film(3)
    asked: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
    with ggmodel.load(folder_of(tmp_path, None), **EXACT) as model:
        wanted = model.generate([clip, "a"], **asked).tokens
        part = {"type": "video", "video": list(clip.frames), "fps": 2.0}
        assert model.generate([part, "a"], **asked).tokens == wanted
        assert model.generate("a", videos=[clip], **asked).tokens == wanted
        assert model.generate("<video>a", videos=[clip], **asked).tokens == wanted
        with pytest.raises(PromptError, match="video 2 is missing"):
            model.generate("<video><video>a", videos=[clip], **asked)
