"""Qwen3-ASR: sounds in windows, configurations, prompts and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.audio import Audio, whisper_mel
from ggmodel.convert import convert, metadata_of, normalize
from ggmodel.convert.keys import recorded, with_defaults
from ggmodel.errors import AudioError, Error, PromptError
from ggmodel.gguf_file import open_gguf
from ggmodel.model import Prepared, find
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse, source_of
from tests.audio.sounds import pcm, tones
from tests.convert.folders import add_special, write_golden
from tests.golden.files import load_golden
from tests.golden.qwen3asr import cases

WINDOW = 200  # frames that see each other
# As transformers writes it.
FEATURES = {
    "feature_extractor_type": "Qwen3ASRFeatureExtractor",
    "chunk_length": 30,
    "dither": 0.0,
    "feature_size": 16,
    "hop_length": 160,
    "min_length": 8000,
    "n_fft": 400,
    "n_window": 50,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 16_000,
}


def load(**options: Any) -> LoadedModel:
    source = source_of(load_golden("qwen3asr", "published"))
    return ggmodel.load(source, **{"context_length": 128, **options})


def sound(samples: int) -> Audio:
    values = np.random.default_rng(samples).normal(size=samples).astype(np.float32)
    return Audio(values, 16_000)


def metadata(hf: dict[str, Any]) -> dict[str, Any]:
    cls = find("qwen3asr")
    return metadata_of(cls, with_defaults(cls, hf, normalize(hf), recorded(hf)))


@pytest.mark.parametrize("case", list(cases.CASES))
def test_both_spellings_of_a_config_say_the_same(case: str):
    golden = load_golden("qwen3asr", case)
    assert metadata(golden.config) == metadata(golden.saved_config)


# Samples; frames in each window, and the rows of all.
@pytest.mark.parametrize(
    ("samples", "frames", "rows"),
    [
        (1, (50,), 7),  # filled up to half a second
        (8000, (50,), 7),
        (8159, (50,), 7),
        (8160, (51,), 7),
        (9120, (57,), 8),
        (16_000, (100,), 13),
        (16_160, (101,), 14),
        (32_000, (200,), 26),
        (32_160, (200, 1), 27),
        (70_000, (200, 200, 37), 57),
    ],
)
def test_rows_of_a_sound(samples: int, frames: tuple[int, ...], rows: int):
    with load() as model:
        given = sound(samples)
        found = model.model.modalities()["audio"].prepare(given)
        assert found.data == {"frames": frames}
        filled = np.pad(given.samples, (0, max(0, 8000 - samples)))
        whole = np.concatenate(list(found.values), axis=1)
        total = sum(frames)
        assert np.array_equal(whole[:, :total], whisper_mel(filled, 16, None))
        assert not whole[:, total:].any()
        made = model.embeddings(given, "audio")
        assert sum(len(one.rows) for one in made) == rows
        net: Any = model.model
        tokens = [i.token for i in net.audio_inputs(made)]
        assert tokens == [151669, *[151676] * rows, 151670]


def test_windows_are_heard_apart():
    """Others change nothing, and each has the graph of its own number of frames."""
    with load() as model:
        values = np.random.default_rng(2).normal(size=(3, 16, WINDOW)).astype(np.float32)
        together: list[Any] = model.encode_media("audio", values, frames=[200, 200, 37])
        for i, n in enumerate((200, 200, 37)):
            (alone,) = model.encode_media("audio", values[i : i + 1], frames=[n])
            assert len(alone.rows) == (26 if n == 200 else 5)
            assert nmse(together[i].rows, alone.rows) < 1e-12


def test_frames_behind_the_sound_are_not_heard():
    with load() as model:
        values = np.random.default_rng(3).normal(size=(1, 16, WINDOW)).astype(np.float32)
        (usual,) = model.encode_media("audio", values, frames=[130])
        for first, same in ((130, True), (129, False)):
            other = values.copy()
            other[:, :, first:] = 3
            (found,) = model.encode_media("audio", other, frames=[130])
            assert (nmse(found.rows, usual.rows) < 1e-12) is same


def test_a_sound_longer_than_the_context():
    shown = r"the sound has 20\.0 s, 260 rows, and the context is 128 tokens long"
    with load() as model, pytest.raises(AudioError, match=shown):
        model.generate([5, {"type": "audio", "audio": sound(320_000)}], max_tokens=1)


@pytest.mark.parametrize(
    ("frames", "shown"),
    [
        ([200], r"frames are \[200\] for 2 parts; give one for each"),
        ([200, 1, 1], r"frames are \[200, 1, 1\] for 2 parts"),
        ([200, 201], r"frames are \[201\]; give 200 at most"),
        ([200, 0], r"its frames is \[200, 0\]; give whole numbers \[windows\] of at least 1"),
        (7, "its frames is 7"),
        ("x", "its frames is 'x'"),
    ],
)
def test_frames_that_do_not_fit(frames: Any, shown: str):
    values = np.zeros((2, 16, WINDOW), np.float32)
    data: dict[str, Any] = {"frames": frames}
    with load() as model:
        for given, beside in ((values, data), (Prepared(values, data), {})):
            with pytest.raises(PromptError, match=shown):
                model.encode_media("audio", given, **beside)


def test_a_references_item_has_its_windows():
    with load() as model:
        given = np.zeros((1, 16, 300), np.float32), np.array([[1] * 237 + [0] * 63])
        names = "input_features", "input_features_mask"
        found = model.model.reference_item("audio", dict(zip(names, given, strict=True)), {})
        assert found.values.shape == (2, 16, WINDOW) and found.data == {"frames": (200, 37)}


def folder_of(path: Path, **features: Any) -> Path:
    folder, _ = write_golden(path, "qwen3asr", "published")
    add_special(folder, cases.SPECIAL)
    said = {**FEATURES, **features}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    return folder


def test_sounds_of_a_folder_are_heard(tmp_path: Path):
    given = pcm(tones(0.9))
    with ggmodel.load(folder_of(tmp_path / "hf"), context_length=64) as model:
        marked = model.generate(f"hear{cases.MARKED}", audio=[given], max_tokens=4, temperature=0)
        first = model.generate("hear", audio=[given], max_tokens=4, temperature=0)
        assert marked.usage.prompt_tokens == first.usage.prompt_tokens == 4 + 12 + 2


def test_files_have_llama_cpps_names(tmp_path: Path):
    text, mmproj = (tmp_path / f"{name}.gguf" for name in ("text", "mmproj"))
    convert(folder_of(tmp_path / "hf"), text, mmproj=mmproj, pre="gpt-2")
    with open_gguf(mmproj) as file:
        keys, shapes = dict(file.metadata), {n: t.shape for n, t in file.tensors.items()}
    assert keys["clip.projector_type"] == "qwen3a" and keys["clip.has_audio_encoder"] is True
    assert keys["clip.audio.window_frames"] == WINDOW
    around = {n: shape for n, shape in shapes.items() if not n.startswith("a.blk")}
    assert around == {
        "a.conv2d.1.weight": (3, 3, 1, 6),
        "a.conv2d.2.weight": (3, 3, 6, 6),
        "a.conv2d.3.weight": (3, 3, 6, 6),
        **{f"a.conv2d.{i}.bias": (1, 1, 6) for i in (1, 2, 3)},
        "a.conv_out.weight": (12, 32),
        "a.position_embd.weight": (32, 1500),
        "a.post_ln.weight": (32,),
        "a.post_ln.bias": (32,),
        "mm.a.mlp.1.weight": (32, 32),
        "mm.a.mlp.1.bias": (32,),
        "mm.a.mlp.2.weight": (32, 64),
        "mm.a.mlp.2.bias": (64,),
    }
    with open_gguf(text) as file:
        assert file.metadata["general.architecture"] == "qwen3"
        assert not any(n.startswith(("a.", "mm.")) for n in file.tensors)


@pytest.mark.parametrize(
    "changes", [{"feature_size": 80}, {"n_fft": 512}, {"min_length": 0}, {"n_window": 25}]
)
def test_another_preparation_is_refused(changes: dict[str, int], tmp_path: Path):
    with pytest.raises(Error, match=f"{next(iter(changes))} is"):
        ggmodel.load(folder_of(tmp_path / "hf", **changes), context_length=64)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"n_window": 25}, "n_window is 25"),
        ({"output_dim": 32}, "output_dim is 32"),
        ({"n_window_infer": 99}, "n_window_infer is 99; supported: 100 frames or more"),
        ({"n_window_infer": "x"}, "n_window_infer is 'x'"),
    ],
)
def test_another_encoder_is_refused(changes: dict[str, Any], shown: str, tmp_path: Path):
    folder = folder_of(tmp_path / "hf")
    (folder / "config.json").write_text(json.dumps(cases.qwen3asr(changes)))
    with pytest.raises(Error, match=shown):
        ggmodel.load(folder, context_length=64)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention.head_count": 3},
        {"context_length": 12},
        {"num_mel_bins": 3000},
        {"embedding_length": 65_536},
        {"window_frames": 0},
    ],
)
def test_impossible_encoders(changes: dict[str, int]):
    source = source_of(load_golden("qwen3asr", "published"))
    changed = {f"qwen3asr.audio.{k}": v for k, v in changes.items()}
    source.metadata = {**source.metadata, **changed}
    with pytest.raises(Error):
        ggmodel.load(source, context_length=64)
