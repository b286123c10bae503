"""Videos of the Qwen models: which frames are seen, at what size and when, and how they reach a
prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert import convert
from ggmodel.errors import ConfigError, Error, PromptError, VideoError
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.nn.vision.videos import film_size, frame_rate
from ggmodel.runner import LoadedModel
from ggmodel.video import Video
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.files import load_golden
from tests.golden.qwen2vl import cases as qwen2vl
from tests.golden.qwen3vl import cases as qwen3vl
from tests.models.test_qwen2vl import folder_of
from tests.models.words import Words

CASES = {"qwen2": "qwen2vl", "qwen25": "qwen2vl", "images": "qwen3vl", "qwen35": "qwen3vl"}
OPTIONS: dict[str, Any] = {"kv_type": "f32", "context_length": 256, "threads": 1}
TIMES = {f"<{tenth / 10:.1f} seconds>": 20 + tenth % 30 for tenth in range(60)}
WORDS = {"qwen2vl": qwen2vl.SPECIAL, "qwen3vl": {**TIMES, **qwen3vl.SPECIAL}}


def film(frames: int, size: tuple[int, int] = (24, 16), rate: float = 2.0) -> Video:
    pixels = np.random.default_rng(frames).integers(0, 256, (frames, *size[::-1], 3), np.uint8)
    return Video(pixels, np.arange(frames) / rate)


def source(case: str, **changes: Any) -> MemorySource:
    """The golden of a case, for small videos."""
    found = source_of(load_golden(CASES[case], case))
    name = found.metadata["general.architecture"]
    changed = {"video_min_pixels": 64, **changes}
    added = {f"{name}.vision.{key}": value for key, value in changed.items()}
    found.metadata = {**found.metadata, **added}
    return found


@pytest.fixture
def load() -> Iterator[Callable[..., LoadedModel]]:
    opened: list[LoadedModel] = []

    def loaded(case: str, context_length: int = 256, **changes: Any) -> LoadedModel:
        options: dict[str, Any] = {**OPTIONS, "context_length": context_length}
        model = ggmodel.load(source(case, **changes), **options)
        opened.append(model)
        model.model.tokenizer = Words(WORDS[CASES[case]])  # type: ignore[assignment]
        return model

    yield loaded
    for model in opened:
        model.close()


# Frames, their rate, and the numbers that `sample_frames` of transformers 5.23's
# Qwen2VLVideoProcessor and Qwen3VLVideoProcessor gives for 2 a second, 4 to 12 of them.
SAMPLED = [
    (2, 24, [0, 1], [0, 1]),
    (3, 10, [0, 1], [0, 1, 2]),
    (7, 2, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6]),
    (9, 1.0, [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7, 8]),
    (48, 24, [0, 12, 24, 36], [0, 16, 31, 47]),
    (50, 25, [0, 12, 25, 37], [0, 16, 33, 49]),
    (100, 30000 / 1001, [0, 16, 33, 50, 66, 83], [0, 20, 40, 59, 79, 99]),
    (13, 3.5, [0, 2, 4, 6, 8, 10], [0, 2, 4, 6, 8, 10, 12]),
    (40, 10, [0, 5, 10, 15, 20, 25, 30, 35], [0, 6, 11, 17, 22, 28, 33, 39]),
    (
        999,
        60,
        [0, 83, 166, 249, 333, 416, 499, 582, 666, 749, 832, 915],
        [0, 91, 181, 272, 363, 454, 544, 635, 726, 817, 907, 998],
    ),
]


def test_frames_are_chosen_as_transformers_does(load: Callable[..., LoadedModel]):
    models = [load(case, video_max_frames=12).model for case in ("qwen25", "images")]
    for frames, rate, *wanted in SAMPLED:
        times = np.arange(frames) / rate
        assert frame_rate(times) == pytest.approx(rate, rel=1e-15)
        for model, want in zip(models, wanted, strict=True):
            found = model.video_frames(frames, frame_rate(times))  # type: ignore[attr-defined]
            assert found.tolist() == want


@pytest.mark.parametrize(
    ("frames", "rate", "last"), [(59, 2.0, [57]), (115, 15.0, [98, 106]), (686, 12.0, [673, 679])]
)
def test_no_frame_behind_the_last_is_seen(
    frames: int, rate: float, last: list[int], load: Callable[..., LoadedModel]
):
    """transformers 5.23 names frame 59, 115 and 686, too; its readers leave them out, or fail."""
    model: Any = load("qwen25", video_max_frames=768).model
    found = model.video_frames(frames, rate).tolist()
    assert found[-len(last) :] == last and len(found) % 2 == 0


@pytest.mark.parametrize("case", CASES)
def test_a_single_frame_is_seen(case: str, load: Callable[..., LoadedModel]):
    model = load(case)
    assert frame_rate(np.zeros(1)) == 24
    assert len(model.embeddings(film(1), "video")[0]) == 6


# Frames, height, width → height and width that transformers 5.23's `smart_resize` of
# video_processing_qwen3_vl gives for squares of 32 and 4096 to 300000 pixels.
SIZES = [
    (2, 64, 96, (64, 96)),
    (4, 480, 640, (224, 288)),
    (5, 100, 30, (96, 32)),
    (7, 1080, 1920, (128, 256)),
    (12, 16, 300, (32, 608)),
    (9, 33, 31, (32, 32)),
    (6, 2000, 11, (3008, 32)),
]


@pytest.mark.parametrize(("frames", "height", "width", "want"), SIZES)
def test_all_frames_together_have_a_size(
    frames: int, height: int, width: int, want: tuple[int, int]
):
    assert film_size((width, height), frames, 32, 4096, 300_000) == want[::-1]


def test_frames_at_once_have_no_rate():
    assert frame_rate(np.linspace(0, 1e-319, 6, dtype=np.float64)) == frame_rate(np.zeros(6)) == 24


def test_a_strip_is_refused(load: Callable[..., LoadedModel]):
    with pytest.raises(VideoError, match="more than 200 times as long as wide"):
        load("images").encode_media("video", film(2, (8, 1700)))


def test_pairs_of_frames_and_their_times(load: Callable[..., LoadedModel]):
    model, five = load("images"), film(5)
    made = model.engine.images.prepare("video", five)
    assert made.values.shape == (3, 2, 3, 16, 24)
    assert made.data["times"] == [0.25, 1.25, 2.0]
    pixels = five.frames.transpose(0, 3, 1, 2) / 127.5 - 1
    np.testing.assert_allclose(made.values[1], pixels[2:4], atol=1e-6)
    np.testing.assert_allclose(made.values[2], pixels[[4, 4]], atol=1e-6)
    parts = model.embeddings(five, "video")
    assert [part.data for part in parts] == [(1, 2, 3, 0.25), (1, 2, 3, 1.25), (1, 2, 3, 2.0)]
    texts = [one for one in model.model.modalities()["video"].inputs(parts) if type(one) is str]
    assert texts == ["<0.2 seconds>", "<1.2 seconds>", "<2.0 seconds>"]


def test_times_are_positions_of_qwen25(load: Callable[..., LoadedModel]):
    for case, want in (("qwen25", (0, 3, 6)), ("qwen2", 3)):
        model = load(case, video_fps=1.3)
        made = model.engine.images.prepare("video", film(6, rate=1.3))
        assert made.data["video_grid_thw"] == (3, 4, 6)
        assert made.data["second_per_grid_ts"] == pytest.approx(2 / 1.3)
        (rows,) = model.embeddings(film(6, rate=1.3), "video")
        assert rows.data == (want, 2, 3) and len(rows) == 18


def test_patches_are_those_of_the_reference(load: Callable[..., LoadedModel]):
    """[n, 3 · 2 · patch²]: channels, frames, rows and columns of each patch."""
    model, two = load("qwen25"), film(2)
    made = model.engine.images.prepare("video", two).values.reshape(-1, 3, 2, 4, 4)
    mean, std = (np.array(n) for n in (model.model.config.image_mean, model.model.config.image_std))
    scaled = (two.frames / 255 - mean) / std
    for n, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)]):
        square = scaled[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        np.testing.assert_allclose(made[n], square.transpose(3, 0, 1, 2), atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_long_videos_are_seen(case: str, load: Callable[..., LoadedModel]):
    """With windows of four sizes in each pair of frames; each pair's rows are its own."""
    model = load(case, 4096, video_max_frames=256, video_fps=2.0, video_min_pixels=64)
    count, rows = 256, 5 * 4
    made = model.engine.images.prepare("video", film(count, (40, 32)))
    seen = np.concatenate([part.rows for part in model.encode_media("video", made)])
    assert len(seen) == count // 2 * rows
    for pair in (0, 77, 127):
        found = seen[pair * rows : (pair + 1) * rows]
        if "video_grid_thw" in made.data:
            one = np.split(made.values, count // 2)[pair]
            alone = model.encode_media("video", one, video_grid_thw=(1, 8, 10))
        else:
            alone = model.encode_media("video", made.values[pair : pair + 1], times=[0.0])
        assert nmse(found, alone[0].rows) < 1e-10


@pytest.mark.parametrize("case", CASES)
def test_a_video_that_is_too_long_for_the_context(case: str, load: Callable[..., LoadedModel]):
    model = load(case, context_length=32)
    with pytest.raises(VideoError, match=r"video of 12 frames of 24 × 16.*36 rows.*which has 32"):
        model.generate([3, film(12), 5], max_tokens=1)
    assert not model.engine.images.nbytes


@pytest.mark.parametrize("case", CASES)
def test_the_largest_video_takes_no_memory(case: str, load: Callable[..., LoadedModel]):
    for most in (1024, 1 << 20):
        values = load(case, video_max_pixels=most).model.largest_video().values  # type: ignore[attr-defined]
        assert values.size >= 2 * 3 * 256 and not any(values.strides)


def test_a_video_is_no_picture_of_its_frames(load: Callable[..., LoadedModel]):
    model = load("qwen25")
    still = Video(np.repeat(film(1).frames, 4, axis=0), np.arange(4) / 2.0)
    reordered = Video(film(4).frames[::-1].copy(), np.arange(4) / 2.0)
    found = [model.logits([3, clip, 5])[-1] for clip in (film(4), still, reordered)]
    assert all(np.abs(found[0] - other).max() > 1e-3 for other in found[1:])


@pytest.mark.parametrize(
    ("case", "shape", "data", "shown"),
    [
        ("qwen25", (8, 96), {"video_grid_thw": [1, 4, 4]}, r"\[16, 96\] is needed"),
        ("qwen25", (16, 96), {"image_grid_thw": [1, 4, 4]}, "video_grid_thw and second"),
        (
            "qwen25",
            (16, 96),
            {"video_grid_thw": [1, 4, 4], "second_per_grid_ts": -1.0},
            "second_per_grid_ts is -1",
        ),
        (
            "qwen25",
            (16, 96),
            {"video_grid_thw": [1, 4, 4], "second_per_grid_ts": float("nan")},
            "second_per_grid_ts is nan",
        ),
        ("images", (2, 2, 3, 16, 24), {"times": [1.0]}, r"at 1 times"),
        ("images", (1, 2, 3, 16, 24), {"times": "a"}, r"its times is 'a'; give numbers \[pairs\]"),
        ("images", (1, 2, 3, 16, 24), {"times": [float("inf")]}, r"its times is \[inf\]"),
        ("images", (1, 2, 3, 16, 24), {"times": [-1.0]}, r"its times is \[-1.0\]; .* at least 0"),
        ("images", (1, 2, 3, 16, 24), {"times": [1e308]}, r"its times is .* at most 1,000,000"),
        ("images", (2, 2, 3, 16, 24), {"times": [2.0, 1.0]}, r"its times is .* before the last"),
        ("images", (1, 2, 3, 16, 24), {"seconds": 1.0}, "data named 'seconds'"),
        ("images", (1, 3, 3, 16, 24), {"times": [1.0]}, r"\[pairs, 2, 3, height, width\]"),
        ("images", (3,), {"times": [1.0]}, r"array \[3\]; this model takes \[pairs, 2, 3,"),
        (
            "qwen25",
            (3,),
            {"video_grid_thw": [1, 4, 4]},
            r"array \[3\]; this model takes \[patches,",
        ),
        ("images", (1, 2, 3, 16, 20), {"times": [1.0]}, "multiples of 8"),
    ],
)
def test_arrays_that_do_not_fit(
    case: str,
    shape: tuple[int, ...],
    data: dict[str, Any],
    shown: str,
    load: Callable[..., LoadedModel],
):
    with pytest.raises(PromptError, match=shown):
        load(case).encode_media("video", np.zeros(shape, np.float32), **data)


@pytest.mark.parametrize(
    ("changes", "shown", "case"),
    [
        ({"video_fps": 0.0}, "frames a second", "qwen25"),
        ({"video_fps": -1.0}, "video_fps is -1.0; it must be 0 or more", "qwen25"),
        ({"video_max_frames": 0}, "video_max_frames is 0", "qwen25"),
        (
            {"video_min_pixels": 1 << 30},
            "vision.video_min_pixels is .* or less",
            "qwen25",
        ),
        (
            {"image_min_pixels": 1 << 30},
            "vision.image_min_pixels is .* or less",
            "qwen25",
        ),
        ({"tokens_per_second": 10**8}, "tokens_per_second is .* 1000 or less", "qwen25"),
        (
            {"video_min_pixels": 1 << 40},
            "vision.video_min_pixels is .* or less",
            "images",
        ),
        (
            {"image_min_pixels": 1 << 40},
            "vision.image_min_pixels is .* or less",
            "images",
        ),
        ({"image_max_pixels": -5}, "qwen3vl.vision.image_max_pixels is -5", "images"),
        ({"image_max_pixels": -5}, "qwen35.vision.image_max_pixels is -5", "qwen35"),
    ],
)
def test_impossible_numbers(changes: dict[str, Any], shown: str, case: str):
    with pytest.raises(ConfigError, match=shown):
        ggmodel.load(source(case, **changes), **OPTIONS)


@pytest.mark.parametrize(
    ("architecture", "case"),
    [("qwen2vl", "qwen25"), ("qwen3vl", "images"), ("idefics3", "smolvlm"), ("internvl", "qwen2")],
)
def test_too_many_frames_a_second(architecture: str, case: str):
    found = source_of(load_golden(architecture, case))
    found.metadata = {**found.metadata, f"{architecture}.vision.video_fps": 1.7e308}
    with pytest.raises(ConfigError, match=r"frames a second .* at most 1,000,000"):
        ggmodel.load(found, **OPTIONS)


# As Qwen3-VL's folder says it, but for small patches.
WATCHED = {
    "size": {"longest_edge": 24576, "shortest_edge": 256},
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "fps": 4,
    "processor_class": "Qwen2_5_VLProcessor",
    "video_processor_type": "Qwen2VLVideoProcessor",
}


def watching(folder: Path, **changes: Any) -> Path:
    folder_of("qwen25", folder)
    said = json.dumps({**WATCHED, **changes})
    (folder / "video_preprocessor_config.json").write_text(said)
    return folder


def test_a_folder_and_its_files_see_the_same(tmp_path: Path):
    folder = watching(tmp_path / "folder")
    one, text, mmproj = (tmp_path / f"{name}.gguf" for name in ("one", "text", "mmproj"))
    convert(folder, one)
    convert(folder, text, mmproj=mmproj)
    found = []
    for given in (folder, open_gguf(one), open_gguf(text, mmproj)):
        with ggmodel.load(given, **OPTIONS) as model:
            h = model.model.config
            assert (h.video_least_pixels, h.video_most_pixels) == (256, 24576)
            assert (h.video_fps, h.second) == (4, 2)
            found.append(model.logits([3, film(6), 5]))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"patch_size": 8}, "video:patch_size"),
        ({"temporal_patch_size": 4}, "video:temporal_patch_size"),
        ({"num_frames": 8}, "video:num_frames"),
        ({"cap_pixels_per_frame": True}, "video:cap_pixels_per_frame"),
        ({"image_mean": [0.5, 0.5, 0.5]}, "video:image_mean"),
        ({"resample": 2}, "video:resample"),
    ],
)
def test_another_preparation_than_the_tower_takes(
    changes: dict[str, Any], key: str, tmp_path: Path
):
    with pytest.raises(Error, match=key):
        ggmodel.load(watching(tmp_path, **changes), **OPTIONS)


@pytest.mark.parametrize(
    "changes", [{"image_mean": [0.1, 0.2, 0.3]}, {"image_std": [0.9, 0.9, 0.9]}, {"resample": 1}]
)
def test_frames_alone_do_not_say_how_they_are_prepared(changes: dict[str, Any], tmp_path: Path):
    """Without a file of pictures, their usual values are used, for frames as well."""
    folder = watching(tmp_path, **changes)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(Error, match=f"video:{next(iter(changes))} is"):
        ggmodel.load(folder, **OPTIONS)


def test_ways_to_show_a_video(tmp_path: Path):
    """A list, an option, a message and a file; at the marker, else before the text."""
    frames = [Image.fromarray(frame) for frame in film(4).frames]
    gif = tmp_path / "a.gif"
    frames[0].save(gif, save_all=True, append_images=frames[1:], duration=500)
    with ggmodel.load(watching(tmp_path / "folder"), **OPTIONS) as model:
        asked: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
        part = {"type": "video", "video": str(gif)}
        marker = "<|vision_start|><|video_pad|><|vision_end|>"
        wanted = model.generate([part, "a"], **asked).tokens
        assert model.generate("a", videos=[gif], **asked).tokens == wanted
        assert model.generate(f"{marker}a", videos=[gif], **asked).tokens == wanted
        length = len(model.prompts.read([part, "a"]))
        assert length == len(model.prompts.read(["a"])) + 2 * 6 + 2
        with pytest.raises(PromptError, match="video 2 is missing"):
            model.generate(f"{marker}{marker}a", videos=[gif], **asked)
