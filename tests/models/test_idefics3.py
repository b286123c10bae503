"""Idefics3: how a picture becomes tiles, and the text between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import PromptError
from ggmodel.model import Input, MultimodalEmbedding, find
from ggmodel.models.idefics3.video import in_words, introduction
from ggmodel.nn import Clip
from ggmodel.video import Video
from ggmodel.workbench.golden import source_of
from tests.golden.files import load_golden
from tests.image.noise import noise

SIDE = 26


@pytest.mark.parametrize(
    ("longest", "size", "grid"),
    [
        (104, (40, 30), (3, 4)),
        (104, (30, 40), (4, 3)),
        (104, (200, 17), (1, 4)),
        (64, (33, 33), (3, 3)),
        (20, (640, 480), (0, 0)),
    ],
)
def test_tiles_of_a_picture(longest: int, size: tuple[int, int], grid: tuple[int, int]):
    """Grids as transformers 5.23 makes them (Idefics3ImageProcessorPil)."""
    model: Any = object.__new__(find("idefics3"))
    half = [0.5] * 3
    config = {"longest": longest, "side": SIDE, "resample": "lanczos"}
    object.__setattr__(model, "config", SimpleNamespace(**config, image_mean=half, image_std=half))
    found = model.preprocess(noise(*size))
    assert found.data["grid"] == grid
    assert found.values.shape == (grid[0] * grid[1] + 1, 3, SIDE, SIDE)
    assert abs(found.values).max() <= 1


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        ((0, 0), "<fake_token_around_image><global-img>##<fake_token_around_image>"),
        (
            (2, 1),
            "<fake_token_around_image><row_1_col_1>##\n"
            "<fake_token_around_image><row_2_col_1>##\n\n"
            "<fake_token_around_image><global-img>##<fake_token_around_image>",
        ),
    ],
)
def test_text_between_tiles(grid: tuple[int, int], text: str):
    """As transformers' processor writes it, # for a row of a tile."""
    model: Any = object.__new__(find("idefics3"))
    object.__setattr__(model, "read_tokenizer", lambda: None)
    tiles = [
        MultimodalEmbedding(lambda: None, grid, shape=(2, 4), key=b"%d" % i)  # type: ignore[arg-type, return-value]
        for i in range(grid[0] * grid[1] + 1)
    ]
    pieces = model.image_inputs(tiles)
    assert "".join("#" if isinstance(one, Input) else one for one in pieces) == text


def bare(**config: Any) -> Any:
    model: Any = object.__new__(find("idefics3"))
    object.__setattr__(model, "read_tokenizer", lambda: None)
    object.__setattr__(model, "config", SimpleNamespace(**config))
    return model


@pytest.mark.parametrize(
    ("frames", "rate", "want"),
    [
        (2, 24, [0]),
        (7, 2, [0, 2, 4, 6]),
        (9, 1.0, [0, 1, 2, 3, 4, 5, 6, 8]),
        (48, 24, [0, 47]),
        (100, 30000 / 1001, [0, 49, 99]),
        (301, 29.97, [29, 63, 98, 132, 167, 201, 236, 271]),
        (40, 10, [0, 13, 26, 39]),
        (999, 60, [60, 185, 311, 436, 562, 687, 813, 939]),
    ],
)
def test_frames_of_a_video(frames: int, rate: float, want: list[int]):
    """As transformers 5.23 samples 1 a second, at most 8 (SmolVLMVideoProcessor)."""
    model = bare(video_fps=1.0, video_max_frames=8)
    assert model.video_frames(frames, rate).tolist() == want


def test_the_length_of_a_video_is_that_of_all_frames():
    """93 s, as transformers' int(metadata.duration); the frames that are seen give 0:01:32."""
    model = bare(video_fps=1.0, video_max_frames=64, side=SIDE, loaded_context=None, rows=1)
    pixels = np.broadcast_to(np.zeros((1, 1, 3), np.uint8), (2790, 8, 8, 3))
    clip = model.open_video(Video(pixels, np.arange(2790) / 30.0))
    assert len(clip.frames) == 64 and clip.seconds == 93.0
    assert "from a 0:01:33 [" in introduction(len(clip.frames), clip.seconds)


def test_frames_are_squares():
    half = [0.5] * 3
    model = bare(longest=60, side=SIDE, resample="lanczos", image_mean=half, image_std=half)
    pixels = np.stack([np.asarray(noise(40, 30)) for _ in range(2)])
    found = model.prepare_video(Clip(pixels, np.array([0.0, 1.0]), 0.5, 4.0))
    assert found.values.shape == (2, 3, SIDE, SIDE)
    assert found.data == {"times": [0.0, 1.0], "seconds": 4.0}


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"times": ["a"]}, r"this video: its times is \['a'\]; give numbers \[frames\]"),
        ({"times": "a"}, "its times is 'a'"),
        ({"times": 0.0}, "its times is 0.0"),
        ({"times": [float("nan")]}, r"its times is \[nan\]"),
        ({"times": [0.0], "seconds": "a"}, "its seconds is 'a'; give a number"),
        ({"times": [0.0, 1.0]}, "at 2 times"),
        ({"times": [-1.0]}, "its times is .*; give numbers .* of at least 0 and at most 1,000,000"),
        ({"times": [1e7]}, "its times is"),
        ({"times": [2.0, 1.0]}, "its times is .*, none before the last"),
        ({"times": [0.0], "seconds": -1}, "its seconds is -1; give a number of at least 0"),
        ({"times": [0.0], "seconds": 1e308}, "its seconds is"),
        ({"time": [0.0]}, "data named 'time'; this model takes times and seconds"),
        ({}, "at 0 times"),
    ],
)
def test_times_that_do_not_fit(data: dict[str, Any], shown: str):
    with ggmodel.load(source_of(load_golden("idefics3", "smolvlm"))) as model:
        side = model.model.config.side
        values = np.zeros((1, 3, side, side), np.float32)
        with pytest.raises(PromptError, match=shown):
            model.encode_media("video", values, **data)


def test_text_of_a_video():
    """As transformers' SmolVLMProcessor writes it, # for a row of a frame."""
    frames = [
        MultimodalEmbedding(lambda: None, (time, 3725.9), shape=(2, 4), key=b"")  # type: ignore[arg-type, return-value]
        for time in (0.0, 59.99, 3605.0)
    ]
    pieces = bare().video_inputs(frames)
    tile = "<fake_token_around_image><global-img>##<fake_token_around_image>"
    assert "".join("#" if isinstance(one, Input) else one for one in pieces) == (
        "You are provided the following series of three frames from a 1:02:05 [H:MM:SS] video.\n"
        f"\nFrame from 00:00:{tile}\nFrame from 00:59:{tile}\nFrame from 60:05:{tile}\n\n"
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (64, "sixty-four"),
        (100, "one hundred"),
        (219, "two hundred and nineteen"),
        (999, "nine hundred and ninety-nine"),
    ],
)
def test_numbers_in_words(number: int, words: str):
    assert in_words(number) == words


def test_too_many_frames_for_words():
    with pytest.raises(PromptError, match="1000 frames"):
        in_words(1000)
