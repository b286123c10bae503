"""Where libmtmd computes with constants, makes pictures and sounds of another size, or ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ggmodel.audio import Audio, whisper_mel
from ggmodel.convert.llama_cpp_tables import FIXED
from ggmodel.workbench.golden import nmse
from tests.audio.sounds import tones
from tests.peers.laid import both_laid, laid_by, ours
from tests.peers.mtmd import Mtmd, Refused
from tests.peers.test_mtmd import compared, noise
from tests.peers.towers import TOWERS, Files, Tower

GREY = np.full((24, 24, 3), 127, np.uint8)
pytestmark = pytest.mark.filterwarnings("ignore:context_length is")
Write = Callable[[Tower], Files]

# Tower, keys of config.json with other values than the constants; the key of the file.
CONSTANTS: list[tuple[str, dict[str, Any], str]] = [
    (
        "gemma4",
        {"vision_config.rope_parameters.rope_theta": 10.0},
        "vision.rope.freq_base",
    ),
    (
        "gemma4-sounds",
        {"audio_config.attention_chunk_size": 4, "audio_config.attention_context_left": 5},
        "audio.attention.context_left",
    ),
    (
        "gemma4-sounds",
        {"audio_config.attention_logit_cap": 0.5},
        "audio.attention.logit_softcapping",
    ),
    ("gemma4-sounds", {"audio_config.residual_weight": 0.25}, "audio.residual_scale"),
    (
        "gemma4-sounds",
        {"audio_config.rms_norm_eps": 0.1},
        "audio.attention.layer_norm_epsilon",
    ),
    ("llama4", {"vision_config.rope_theta": 100.0}, "vision.rope.freq_base"),
    ("ministral", {"vision_config.rope_theta": 100.0}, "vision.rope.freq_base"),
    ("qwen25vl", {"vision_config.window_size": 16}, "vision.window_size"),
]


@pytest.mark.parametrize(("name", "changes", "stored"), CONSTANTS)
def test_a_constant_stands_for_a_key(
    name: str, changes: dict[str, Any], stored: str, tower_files: Write, mtmd: Mtmd
):
    """libmtmd makes of a file with another value what we make of one with the constant."""
    tower = TOWERS[name]
    files = tower_files(tower)
    theirs = tower_files(replace(tower, changes={**tower.changes, **changes}))
    assert max(compared(name, files, mtmd, tower.differences, theirs)) < tower.bound
    assert max(compared(name, theirs, mtmd, tower.differences, theirs)) > 10 * tower.bound


def test_convert_tells_of_these_constants():
    here = {(TOWERS[name].architecture, stored) for name, _, stored in CONSTANTS}
    told = {(name, fixed.key) for name, table in FIXED.items() for fixed in table}
    assert here == {one for one in told if one[1].startswith(("vision.", "audio."))}


# Tower, the size of a picture; our rows and libmtmd's, breaks among them. The reasons are in
# docs/convert.md.
SIZES = [
    ("gemma4", (24, 16), 20 * 13, 11 * 7),
    ("gemma4", (360, 320), 17 * 15, 35 * 31),
    ("idefics3-tile", (26, 20), 9, 18),
    ("internvl", (8, 16), 3 * 4, 4),
    ("lfm2vl-small", (96, 64), 3 * 2, 10 * 7),
    ("lfm2vl-tiles", (1400, 700), 2 * 16 + 22 * 11, 2 * 256 + 22 * 11),
    ("llama4", (120, 24), 6 * 9, 4 * 9),
    ("mistral3", (16, 16), 2 * 2 + 1, 3 * 3 + 2),
    ("qwen2vl-small", (16, 16), 2 * 2, 3 * 3),
]


def prepared(name: str, **changes: Any) -> Tower:
    """A tower with other keys in preprocessor_config.json."""
    return replace(TOWERS[name], prepared={**TOWERS[name].prepared, **changes})


OTHERS = {
    "idefics3-tile": prepared("idefics3", size={"longest_edge": 26}),
    "lfm2vl-small": prepared("lfm2vl", min_image_tokens=4),
    "lfm2vl-tiles": prepared("lfm2vl", tile_size=128, max_tiles=3),
    "qwen2vl-small": prepared("qwen2vl", size={"shortest_edge": 64, "longest_edge": 262144}),
}


@pytest.mark.parametrize(("name", "size", "here", "there"), SIZES)
def test_pictures_of_which_other_rows_are_made(
    name: str, size: tuple[int, int], here: int, there: int, tower_files: Write, mtmd: Mtmd
):
    tower = {**TOWERS, **OTHERS}[name]
    got, want = both_laid(tower, tower_files(tower), mtmd, noise(*size))
    assert (len(got.rows), len(want.rows)) == (here, there)


def test_a_sound_from_samples_to_rows(tower_files: Write, mtmd: Mtmd):
    """Gemma 4's, with the tokens around them."""
    tower, samples = TOWERS["gemma4-sounds"], tones(2.1)
    got, want = both_laid(tower, tower_files(tower), mtmd, Audio(samples, 16_000))
    assert got.tokens == want.tokens
    assert nmse(got.rows, want.rows) < tower.bound


def test_short_sounds_are_filled_up_with_silence(tower_files: Write, mtmd: Mtmd):
    """For Qwen 2-Audio: all of it is heard and laid into the text."""
    tower, samples = TOWERS["qwen2audio"], 3 * tones(2.0)
    files = tower_files(tower)
    usual, want = both_laid(tower, files, mtmd, Audio(samples, 16_000))
    same, two = both_laid(tower, files, mtmd, Audio(filled(samples), 16_000))
    assert (len(usual.rows), len(want.rows)) == (50, 750)
    assert same.tokens == want.tokens
    assert nmse(same.rows, want.rows) < tower.bound
    assert nmse(usual.rows, want.rows[:50]) > 0.1
    assert len(two.rows) == 2 * len(same.rows)  # 30 s of sound become 60


def filled(samples: np.ndarray) -> np.ndarray:
    """Samples of 30 s."""
    return np.pad(samples, (0, 480_000 - len(samples)))


def test_sounds_have_a_frame_more_and_whole_seconds(tower_files: Write, mtmd: Mtmd):
    """For Qwen3-ASR: the frame at the very end, behind which the sound is mirrored, and zeros."""
    tower, samples = TOWERS["qwen3asr"], tones(2.0)
    files = tower_files(tower)
    usual, want = both_laid(tower, files, mtmd, Audio(samples, 16_000))
    assert (len(usual.rows), len(want.rows)) == (26, 39)
    heard = whisper_mel(np.pad(samples, (0, 400), "reflect"), 16, None)[:, :201]
    least = np.float32((np.log10(2.0**-24) + 4) / 4)
    spectrum = np.pad(np.maximum(heard, least), ((0, 0), (0, 599)))[None]
    with ours(files, ()) as model:
        (same,) = model.encode_media("audio", spectrum, frames=[300])
    assert nmse(same.rows, want.rows) < tower.bound
    assert nmse(usual.rows, want.rows[:26]) > 1e-4


def test_what_is_faint_in_soft_sounds_is_louder(tower_files: Write, mtmd: Mtmd):
    """For Qwen 2-Audio the least power is 2⁻²⁴, for transformers 10⁻¹⁰ or 10⁻⁸ of the largest."""
    tower, samples = TOWERS["qwen2audio"], tones(2.0)
    files = tower_files(tower)
    spectrum = whisper_mel(filled(samples), 8)
    louder = np.maximum(spectrum, np.float32((np.log10(2.0**-24) + 4) / 4))
    with ours(files, ()) as model:
        (usual,) = model.encode_media("audio", spectrum, frames=3000)
        (same,) = model.encode_media("audio", louder, frames=3000)
    want = laid_by(mtmd, files, samples).rows
    assert nmse(same.rows, want) < tower.bound
    assert nmse(usual.rows, want) > 0.01


# Sounds are heard in windows of 30 s, as published.
_HEARD = {key: getattr(TOWERS["qwen2audio"], key) for key in ("changes", "prepared", "shapes")}
# Files that libmtmd ends at, and why. Only tiny models have the sizes of the first two.
REFUSED = [
    (replace(TOWERS["gemma3n"], text=""), "per_layer_token_embd.weight' has wrong shape"),
    (
        replace(
            TOWERS["gemma3n"],
            shapes={},
            changes={**TOWERS["gemma3n"].changes, "vision_config.hidden_size": 2048},
        ),
        r"mismatch between text model \(n_embd = 64\) and mmproj \(n_embd = 2048\)",
    ),
    (replace(TOWERS["voxtral"], **_HEARD), "expected output 187 tokens, got 188"),
]


@pytest.mark.parametrize(("tower", "reason"), REFUSED, ids=["layers", "width", "voxtral"])
def test_files_that_it_ends_at(tower: Tower, reason: str, tower_files: Write, mtmd: Mtmd):
    files = tower_files(tower)
    with pytest.raises(Refused, match=reason):
        laid_by(mtmd, files, tones(2.0) if tower.architecture == "voxtral" else GREY)


def test_gemma_3n_is_deaf(tower_files: Write, mtmd: Mtmd):
    files = tower_files(TOWERS["gemma3n"])
    with pytest.raises(Refused, match="no such tower"):
        mtmd.prepared(files.mmproj, "audio", [np.zeros((16, 40), np.float32)])
