"""Qwen2-Audio: sounds of up to a window, configurations, prompts and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.audio import Audio, whisper_mel
from ggmodel.convert import convert, from_hf, metadata_of, normalize
from ggmodel.convert.keys import recorded, with_defaults
from ggmodel.errors import AudioError, Error, PromptError
from ggmodel.gguf_file import open_gguf
from ggmodel.model import Prepared, find
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse, source_of
from tests.audio.sounds import pcm, tones
from tests.convert.folders import add_special, write_golden
from tests.golden.files import load_golden
from tests.golden.qwen2audio import cases

WINDOW = 6400  # samples that are heard at once
FEATURES = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "chunk_length": 0,  # seconds; published ones hear 30
    "feature_size": 8,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": WINDOW,
    "nb_max_frames": 40,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "Qwen2AudioProcessor",
    "return_attention_mask": True,
    "sampling_rate": 16_000,
}
# As published, whose keys of the text are few.
TEXT = {
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "intermediate_size": 11008,
    "max_position_embeddings": 8192,
    "model_type": "qwen2",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000,
    "sliding_window": 32768,
    "torch_dtype": "bfloat16",
    "use_mrope": False,
    "vocab_size": 156032,
}
# The published one writes so.
TEMPLATE = (
    "{% for m in messages %}{% for part in m['content'] %}{% if 'audio' in part or "
    "part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>{% elif 'text' in part %}"
    "{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)


def load(**options: Any) -> LoadedModel:
    source = source_of(load_golden("qwen2audio", "published"))
    return ggmodel.load(source, **{"context_length": 128, **options})


def sound(samples: int, rate: int = 16_000) -> Audio:
    values = np.random.default_rng(samples).normal(size=samples).astype(np.float32)
    return Audio(values, rate)


def metadata(hf: dict[str, Any]) -> dict[str, Any]:
    """With transformers' defaults, which published configs leave out."""
    cls = find("qwen2audio")
    return metadata_of(cls, with_defaults(cls, hf, normalize(hf), recorded(hf)))


@pytest.mark.parametrize("case", list(cases.CASES))
def test_both_spellings_of_a_config_say_the_same(case: str):
    golden = load_golden("qwen2audio", case)
    assert metadata(golden.config) == metadata(golden.saved_config)


def test_keys_that_published_configs_leave_out():
    given = {"architectures": ["Qwen2AudioForConditionalGeneration"], "text_config": TEXT}
    found = metadata({**given, "audio_config": {"model_type": "qwen2_audio_encoder"}})
    usual = {
        "audio.attention.head_count": 20,
        "audio.block_count": 32,
        "audio.context_length": 1500,
        "audio.embedding_length": 1280,
        "audio.feed_forward_length": 5120,
        "audio.num_mel_bins": 128,
        "attention.head_count": 32,
        "attention.head_count_kv": 32,
        "block_count": 32,
        "embedding_length": 4096,
        "feed_forward_length": 11008,
    }
    assert {k: found[f"qwen2audio.{k}"] for k in usual} == usual


def test_both_spellings_of_names_load():
    golden = load_golden("qwen2audio", "published")
    weights = golden.weights()
    changes = (
        ("language_model.lm_head.", "lm_head."),
        ("language_model.model.", "model.language_model."),
        ("audio_tower.", "model.audio_tower."),
        ("multi_modal_projector.", "model.multi_modal_projector."),
    )
    other = {
        next((new + n.removeprefix(old) for old, new in changes if n.startswith(old)), n): w
        for n, w in weights.items()
    }
    assert other.keys().isdisjoint(weights)
    usual, found = source_of(golden), from_hf(find("qwen2audio"), golden.config, other)
    assert found.tensors.keys() == usual.tensors.keys()
    assert all(bytes(found.data(n)) == bytes(usual.data(n)) for n in usual.tensors)


# Frames that the mask of transformers' processor has, and the rows of these.
@pytest.mark.parametrize(
    ("samples", "frames", "rows"),
    [(321, 3, 1), (480, 3, 1), (481, 4, 1), (1120, 7, 2), (1121, 8, 2), (WINDOW, 40, 10)],
)
def test_rows_of_a_sound(samples: int, frames: int, rows: int):
    with load() as model:
        given = sound(samples)
        found = model.model.modalities()["audio"].prepare(given)
        assert found.data == {"frames": frames}
        assert np.array_equal(found.values, whisper_mel(given.samples, 8, length=WINDOW))
        (one,) = model.embeddings(given, "audio")
        assert len(one.rows) == rows
        net: Any = model.model
        inputs = net.audio_inputs([one])
        assert [i.token for i in inputs] == [151647, *[151646] * rows, 151648]


def test_what_is_filled_up_is_not_seen():
    """Frames behind those of the convolutions' reach change nothing."""
    with load() as model:
        values = np.random.default_rng(2).normal(size=(8, 40)).astype(np.float32)
        (usual,) = model.encode_media("audio", values, frames=17)
        for first, same in ((19, True), (18, False)):
            other = values.copy()
            other[:, first:] = 3
            (found,) = model.encode_media("audio", other, frames=17)
            assert (nmse(found.rows, usual.rows) < 1e-12) is same


@pytest.mark.parametrize(
    ("samples", "rate", "shown"),
    [
        (WINDOW + 1, 16_000, r"the sound has 0\.4 s, and this model hears 0\.4 s"),
        (16_000, 16_000, "give it in parts"),
        (320, 16_000, "has 320 samples, and this model hears no fewer than 321"),
        (1, 16_000, "no fewer than 321"),
    ],
)
def test_sounds_of_another_length(samples: int, rate: int, shown: str):
    with load() as model, pytest.raises(AudioError, match=shown):
        model.generate([5, {"type": "audio", "audio": sound(samples, rate)}], max_tokens=1)


@pytest.mark.parametrize("frames", [2, 41])
def test_frames_that_do_not_fit(frames: int):
    with load() as model, pytest.raises(PromptError, match=rf"{frames} frames .* 3 to 40"):
        model.encode_media("audio", np.zeros((8, 40), np.float32), frames=frames)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"frames": "x"}, "this audio: its frames is 'x'; give a whole number"),
        ({"frames": 2.5}, "its frames is 2.5"),
        ({"frames": [3, 4]}, r"its frames is \[3, 4\]; give a whole number"),
        ({"frames": None}, "its frames is None"),
        ({"frame": 3}, "data named 'frame'; this model takes frames"),
    ],
)
def test_data_that_do_not_fit(data: dict[str, Any], shown: str):
    values = np.zeros((8, 40), np.float32)
    with load() as model:
        for given, beside in ((values, data), (Prepared(values, data), {})):
            with pytest.raises(PromptError, match=shown):
                model.encode_media("audio", given, **beside)


def test_a_references_item_has_its_frames():
    with load() as model:
        given = np.zeros((1, 8, 40), np.float32), np.array([[1] * 9 + [0] * 31])
        names = "input_features", "feature_attention_mask"
        inputs: dict[str, np.ndarray] = dict(zip(names, given, strict=True))
        found: Prepared = model.model.reference_item("audio", inputs, {})
        assert found.values.shape == (8, 40) and found.data == {"frames": 9}


def folder_of(path: Path, **features: Any) -> Path:
    folder, _ = write_golden(path, "qwen2audio", "published")
    add_special(folder, cases.SPECIAL)
    said = {**FEATURES, **features}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    return folder


def test_parts_of_messages_are_heard(tmp_path: Path):
    given = pcm(tones(0.3))
    said = [{"type": "audio", "audio": given}, {"type": "text", "text": "hear"}]
    options: dict[str, Any] = {"template": TEMPLATE, "max_tokens": 4, "temperature": 0}
    with ggmodel.load(folder_of(tmp_path / "hf"), context_length=64) as model:
        answer: Any = model.chat([{"role": "user", "content": said}], **options)
        again = model.generate("hear", audio=[given], max_tokens=4, temperature=0)
        assert answer.tokens == again.tokens
        assert answer.usage.prompt_tokens == 2 + 7 + len("hear")


def test_files_have_llama_cpps_names(tmp_path: Path):
    text, mmproj = (tmp_path / f"{name}.gguf" for name in ("text", "mmproj"))
    convert(folder_of(tmp_path / "hf"), text, mmproj=mmproj, pre="gpt-2")
    with open_gguf(mmproj) as file:
        keys, names = dict(file.metadata), set(file.tensors)
    assert keys["clip.projector_type"] == "qwen2a" and keys["clip.has_audio_encoder"] is True
    assert keys["clip.audio.projection_dim"] == 64
    assert "clip.audio.projector.stack_factor" not in keys
    assert {n for n in names if n.startswith("mm.")} == {"mm.a.fc.weight", "mm.a.fc.bias"}
    with open_gguf(text) as file:
        assert file.metadata["general.architecture"] == "qwen2"
        assert not any(n.startswith(("a.", "mm.")) for n in file.tensors)


@pytest.mark.parametrize("changes", [{"feature_size": 80}, {"n_fft": 512}])
def test_another_preparation_is_refused(changes: dict[str, int], tmp_path: Path):
    with pytest.raises(Error, match=f"{next(iter(changes))} is"):
        ggmodel.load(folder_of(tmp_path / "hf", **changes), context_length=64)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention.head_count": 3},
        {"context_length": 2**31 - 1},
        {"num_mel_bins": 3000},
        {"embedding_length": 65_536},
    ],
)
def test_impossible_encoders(changes: dict[str, int]):
    source = source_of(load_golden("qwen2audio", "published"))
    changed = {f"qwen2audio.audio.{k}": v for k, v in changes.items()}
    source.metadata = {**source.metadata, **changed}
    with pytest.raises(Error):
        ggmodel.load(source, context_length=64)
