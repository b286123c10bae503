"""Videos as frames: animated pictures, folders, lists, other files; and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.errors import ImageError, Unsupported, VideoError
from ggmodel.video import Video, open_video

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)]


def picture(n: int, size: tuple[int, int] = (6, 4)) -> Image.Image:
    return Image.new("RGB", size, COLOURS[n])


def encoded(form: str, durations: list[int], **options: Any) -> bytes:
    stream = BytesIO()
    first, *others = (picture(n) for n in range(len(durations)))
    first.save(stream, form, save_all=True, append_images=others, duration=durations, **options)
    return stream.getvalue()


def colours(video: Video) -> list[tuple[int, ...]]:
    return [tuple(map(int, frame[0, 0])) for frame in video.frames]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_animated_pictures(form: str):
    options = {"lossless": True} if form == "WEBP" else {}
    video = open_video(encoded(form, [100, 200, 300, 100], **options))
    assert video.frames.shape == (4, 4, 6, 3) and video.frames.dtype == np.uint8
    assert colours(video) == COLOURS
    np.testing.assert_allclose(video.times, [0, 0.1, 0.3, 0.6])


def test_frames_without_a_time_count_as_in_browsers():
    np.testing.assert_allclose(open_video(encoded("GIF", [0, 0, 0])).times, [0, 0.1, 0.2])


def test_transparency_is_white():
    stream = BytesIO()
    Image.new("RGBA", (2, 2), (0, 0, 0, 0)).save(stream, "PNG")
    assert colours(open_video(stream.getvalue())) == [(255, 255, 255)]


def test_lists_of_frames(tmp_path: Path):
    picture(1).save(tmp_path / "one.png")
    frames = [picture(0), tmp_path / "one.png", np.asarray(picture(2))]
    video = open_video((frames, 2))
    assert colours(video) == COLOURS[:3]
    assert video.times.tolist() == [0, 0.5, 1]
    assert open_video(frames).times.tolist() == [0, 1 / 24, 2 / 24]
    array = np.stack([np.asarray(picture(n)) for n in range(3)])
    assert open_video(array).frames.tobytes() == video.frames.tobytes()
    assert open_video(video).times.tolist() == [0, 0.5, 1]


def test_a_folder_is_read_by_its_numbers(tmp_path: Path):
    for name, n in (("frame-10.png", 2), ("frame-9.png", 1), ("frame-1.png", 0)):
        picture(n).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("none")
    assert colours(open_video(tmp_path)) == COLOURS[:3]
    assert colours(open_video(str(tmp_path))) == COLOURS[:3]


def test_a_model_chooses_frames():
    data = encoded("GIF", [100, 100, 100, 100])
    seen: list[list[float]] = []

    def choose(times: np.ndarray) -> list[int]:
        seen.append(times.round(3).tolist())
        return [1, 3]

    video = open_video(data, choose)
    assert seen == [[0, 0.1, 0.2, 0.3]]
    assert colours(video) == [COLOURS[1], COLOURS[3]]
    assert video.times.round(3).tolist() == [0.1, 0.3]
    assert colours(open_video([picture(n) for n in range(4)], choose)) == colours(video)
    for wrong in ([], [4], [-1]):
        with pytest.raises(VideoError, match="the model chose"):
            open_video(data, lambda times, wrong=wrong: wrong)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "the video has no frames"),
        (np.zeros((0, 4, 4, 3), np.uint8), "no frames"),
        (np.zeros((2, 4, 4), np.uint8), r"uint8 \[n, height, width, 3\], not uint8 \[2, 4, 4\]"),
        (([picture(0)], 0), "0.0 frames a second"),
        ((7, 24), "frames of a video are a list, not int"),
        ([picture(0), picture(1, (2, 2))], "frame 1 of the video has 2 × 2 pixels, frame 0 6 × 4"),
        ([np.zeros((4, 4, 3))], "frame 0 of the video is float64"),
        (7, "not int"),
        (b"", "is empty"),
        ("no such file.gif", "there is no file"),
        ("https://a.b/c.mp4", "is not fetched; download the video"),
        (b"GIF89a", "cannot be decoded"),
    ],
)
def test_what_is_no_video(source: Any, message: str):
    with pytest.raises(VideoError, match=message):
        open_video(source)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0, 1, np.nan], "frame 2 of the video is at nan s"),
        ([0, np.inf, np.inf], "frame 1 of the video is at inf s"),
        ([0, 2, 1], "frame 2 of the video is at 1.0 s; .* none before the last"),
        ([-1, 0, 1], "frame 0 of the video is at -1.0 s; give times from 0"),
        ([0, 1, 1e308], "frame 2 of the video is at 1e.308 s"),
        ([0, 1], r"3 frames and times \[2\]"),
        (["a", "b", "c"], "times of a video are numbers"),
    ],
)
def test_times_of_a_given_video_are_checked(times: Any, message: str):
    frames = np.zeros((3, 4, 6, 3), np.uint8)
    with pytest.raises(VideoError, match=message):
        open_video(Video(frames, np.array(times)), lambda times: range(len(times)))
    given: Any = Video(frames, [0, 1, 1])  # type: ignore[arg-type]
    assert open_video(given).times.tolist() == [0, 1, 1]
    for wrong in ([*frames], frames[0], frames.astype(float)):
        with pytest.raises(VideoError, match="the frames of a video are"):
            open_video(Video(wrong, np.arange(3.0)))  # type: ignore[arg-type]


def test_a_frame_that_is_no_picture_is_named(tmp_path: Path):
    (tmp_path / "2.png").write_bytes(b"none")
    picture(0).save(tmp_path / "1.png")
    with pytest.raises(ImageError, match=r"frame 1 of .*2\.png is no PNG"):
        open_video(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(VideoError, match="no frames"):
        open_video(tmp_path / "empty")


@pytest.mark.parametrize(
    ("limit", "most", "message"),
    [
        ("video_frames", 3, r"4 frames, but the limit is 3.*limits\.video_frames"),
        ("video_pixels", 95, r"4 frames of (24|6 × 4) pixels.*limits\.video_pixels"),
        ("video_bytes", 20, r"limits\.video_bytes"),
    ],
)
def test_limits(monkeypatch: pytest.MonkeyPatch, limit: str, most: int, message: str):
    data = encoded("GIF", [100] * 4)
    open_video(data)
    monkeypatch.setattr(ggmodel.limits, limit, most)
    with pytest.raises(VideoError, match=message):
        open_video(data)
    if limit != "video_bytes":
        with pytest.raises(VideoError, match=message):
            open_video([picture(n) for n in range(4)])


MP4 = b"\0\0\0\x18ftypmp42"


def test_other_files_need_a_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(Unsupported, match=r"the package av.*pip install .*av"):
        open_video(MP4)


class Container:
    """PyAV's, of four frames whose packets come in the order of decoding."""

    def __init__(self, frames: int = 4, has_pictures: bool = True, scale: int = 1):
        self.stream = SimpleNamespace(width=6, height=4, time_base=0.5)
        self.streams = SimpleNamespace(video=[self.stream] if has_pictures else [])
        self.frames, self.scale, self.decoded = frames, scale, 0

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None: ...

    def demux(self, stream: Any) -> list[Any]:
        stamps = (2, 4, 3, 5, None, 0)
        return [SimpleNamespace(pts=pts, is_discard=pts == 0) for pts in stamps]

    def seek(self, position: int) -> None:
        assert position == 0

    def decode(self, stream: Any) -> Iterator[Any]:
        frames = [np.asarray(picture(n)) for n in range(self.frames)]
        width, height = self.stream.width, self.stream.height
        self.decoded = 0
        for frame in frames:
            self.decoded += 1
            yield SimpleNamespace(
                to_ndarray=lambda format, f=frame: f, width=width * self.scale, height=height
            )


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (Container(), ""),
        (Container(has_pictures=False), "holds no pictures, only sound"),
        (Container(frames=2), "ends early: 2 of 3 frames"),
        (ValueError("moov atom not found"), "cannot be decoded: moov atom not found"),
    ],
)
def test_files_by_pyav(monkeypatch: pytest.MonkeyPatch, container: Any, message: str):
    def start(file: BytesIO, options: dict[str, str]) -> Any:
        assert file.getvalue() == MP4
        # Neither playlists nor descriptions of streams: these open files and connections.
        assert not {"concat", "hls", "dash", "sdp"} & set(options["format_whitelist"].split(","))
        if isinstance(container, Exception):
            raise container
        return container

    monkeypatch.setitem(sys.modules, "av", SimpleNamespace(open=start))
    if message:
        with pytest.raises(VideoError, match=message):
            open_video(MP4, lambda times: [0, 1, 2])
        return
    video = open_video(MP4, lambda times: [0, 3])
    assert colours(video) == [COLOURS[0], COLOURS[3]]
    assert video.times.tolist() == [0, 1.5]


@pytest.mark.parametrize(
    ("scale", "most", "decoded", "message"),
    [
        (1, 95, 0, r"96 pixels in the 4 frames up to .* the limit is 95; .*video_decoded_pixels"),
        (2, 96, 3, r"144 pixels in the 3 frames up to .*video_decoded_pixels"),  # unlike its header
        (1, 96, 4, ""),
    ],
)
def test_pixels_on_the_way_to_the_last_frame_are_counted(
    monkeypatch: pytest.MonkeyPatch, scale: int, most: int, decoded: int, message: str
):
    container = Container(scale=scale)
    monkeypatch.setitem(sys.modules, "av", SimpleNamespace(open=lambda *_, **__: container))
    monkeypatch.setattr(ggmodel.limits, "video_decoded_pixels", most)
    if message:
        with pytest.raises(VideoError, match=message):
            open_video(MP4, lambda times: [3])
    else:
        assert colours(open_video(MP4, lambda times: [3])) == [COLOURS[3]]
    assert container.decoded == decoded
    container.decoded = 0
    assert len(open_video(MP4, lambda times: [0]).frames) == 1  # earlier ones are no trouble


@pytest.mark.parametrize(("limit", "most"), [("video_frames", 2), ("video_pixels", 48)])
def test_a_gif_is_not_walked_to_its_end(monkeypatch: pytest.MonkeyPatch, limit: str, most: int):
    """It may have any number of frames; only its end tells."""
    from PIL.GifImagePlugin import GifImageFile

    walked: list[int] = []
    seek = GifImageFile._seek

    def counted(self: Any, frame: int, update_image: bool = True) -> None:
        walked.append(frame)
        seek(self, frame, update_image)

    data = encoded("GIF", [100] * 4)
    monkeypatch.setattr(GifImageFile, "_seek", counted)
    monkeypatch.setattr(ggmodel.limits, limit, most)
    with pytest.raises(VideoError, match=rf"3 frames.*{limit}"):
        open_video(data)
    assert max(walked) == 2
