"""Limits: their names, their values, the environment."""

from __future__ import annotations

import io
import wave

import pytest

import ggmodel
from ggmodel.bounds import Limits, one_request
from ggmodel.errors import ConfigError, PromptError
from ggmodel.video.frames import room


def test_a_limit_is_changed_for_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggmodel.limits, "image_side", 10)
    with pytest.raises(ggmodel.Error, match="10 a side"):
        ggmodel.image.open_image(
            b"BM"
            + bytes([26, 0, 0, 0, 0, 0, 0, 0, 26, 0, 0, 0, 12, 0, 0, 0])
            + bytes([11, 0, 1, 0, 1, 0, 24, 0])
            + bytes(36)
        )


@pytest.mark.parametrize("value", [0, -1, True, "5", None, 1.5, float("nan")])
def test_a_limit_is_a_positive_number(value: object):
    with pytest.raises(ConfigError, match="image_side must be a positive number"):
        Limits().image_side = value  # type: ignore[assignment]


def test_an_unknown_limit_is_named():
    with pytest.raises(ConfigError, match=r"no limit 'image_sides'; the limits are .*image_bytes"):
        Limits().image_sides = 5  # type: ignore[attr-defined]


def test_the_environment_sets_limits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GGMODEL_LIMIT_IMAGE_SIDE", "77")
    assert Limits.from_environment() == Limits(image_side=77)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("GGMODEL_LIMIT_IMAGE_SIDE", "many", "must be a positive number, not 'many'"),
        ("GGMODEL_LIMIT_IMAGE_SIDE", "0", "must be a positive number"),
        ("GGMODEL_LIMIT_IMAGE_SIDES", "5", "names no limit; the limits are .*GGMODEL_LIMIT_IMAGE_"),
    ],
)
def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=message):
        Limits.from_environment()


def test_sounds_and_videos_of_one_request_have_limits_together(monkeypatch: pytest.MonkeyPatch):
    """Each request has its own sums; outside of any there is none."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(2 * 8000))
    monkeypatch.setattr(ggmodel.limits, "audio_seconds", 2)
    monkeypatch.setattr(ggmodel.limits, "video_pixels", 500)
    for _ in range(2):
        with one_request():
            for _ in range(2):
                ggmodel.audio.open_audio(data.getvalue())
                room("the video", 2, 10, 10)
            with pytest.raises(PromptError, match=r"3 seconds of sounds .*audio_seconds"):
                ggmodel.audio.open_audio(data.getvalue())
            with pytest.raises(PromptError, match=r"600 pixels of videos .*video_pixels"):
                room("the video", 2, 10, 10)
    for _ in range(3):
        ggmodel.audio.open_audio(data.getvalue())
