"""Voxtral: sounds of any length, configurations, prompts and files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.audio import Audio, whisper_mel
from ggmodel.convert import convert, from_hf, metadata_of, normalize
from ggmodel.errors import (
    AudioError,
    ConfigError,
    Error,
    PromptError,
    TemplateError,
    TokenizerError,
)
from ggmodel.gguf_file import open_gguf
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse, source_of
from tests.audio.sounds import pcm
from tests.convert.folders import add_special, write_golden
from tests.golden.files import load_golden
from tests.golden.voxtral import cases
from tests.transcript import voxtrals
from tests.transcript.voxtrals import FEATURES, ROWS, WINDOW

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def load(**options: Any) -> LoadedModel:
    return ggmodel.load(
        source_of(load_golden("voxtral", "published")), **{"context_length": 128, **options}
    )


def sound(samples: int) -> Audio:
    return Audio(np.random.default_rng(samples).normal(size=samples).astype(np.float32), 16_000)


def folder_of(path: Path, **features: Any) -> Path:
    folder, _ = write_golden(path, "voxtral", "published")
    add_special(folder, cases.SPECIAL)
    said = {**FEATURES, **features}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize("case", list(cases.CASES))
def test_both_spellings_of_a_config_say_the_same(case: str):
    golden = load_golden("voxtral", case)
    published, saved = (
        metadata_of(find("voxtral"), normalize(c)) for c in (golden.config, golden.saved_config)
    )
    assert published == saved


def test_both_spellings_of_names_load():
    golden = load_golden("voxtral", "published")
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
    usual, found = source_of(golden), from_hf(find("voxtral"), golden.config, other)
    assert found.tensors.keys() == usual.tensors.keys()
    assert all(bytes(found.data(n)) == bytes(usual.data(n)) for n in usual.tensors)


@pytest.mark.parametrize("samples", [1, WINDOW, WINDOW + 1, 3 * WINDOW - 7])
def test_windows_share_one_spectrum(samples: int):
    """As transformers' processor: the sound is filled up to whole windows, then cut."""
    with load() as model:
        given, windows = sound(samples), -(-samples // WINDOW)
        found = model.model.modalities()["audio"].prepare(given)
        whole = whisper_mel(given.samples, 8, length=windows * WINDOW)
        assert np.array_equal(np.concatenate(list(found.values), axis=1), whole)
        assert len(found.values) == windows
        assert sum(map(len, model.embeddings(given, "audio"))) == windows * ROWS


def test_rows_of_a_window_do_not_depend_on_others():
    with load() as model:
        values = np.random.default_rng(2).normal(size=(3, 8, 40)).astype(np.float32)
        together = model.encode_media("audio", values)
        alone = [model.encode_media("audio", values[i : i + 1])[0] for i in range(3)]
        for a, b in zip(together, alone, strict=True):
            assert nmse(a.rows, b.rows) < 1e-12


def test_as_many_windows_as_the_context_holds():
    """They take no more of the graph than one does."""
    source = source_of(load_golden("voxtral", "published"))
    source.metadata = {**source.metadata, "voxtral.context_length": 1024}
    most = 1024 // ROWS
    with ggmodel.load(source, context_length=1024) as model:
        given = sound(most * WINDOW - 9)
        found = model.encode_media("audio", given)
        spectrum = model.engine.images.prepare("audio", given)
        assert len(found) == len(spectrum.values) == most
        for i in (0, 1, most - 1):
            (alone,) = model.encode_media("audio", spectrum.values[i : i + 1])
            assert nmse(found[i].rows, alone.rows) < 1e-12
        assert model.engine.images.encoders.recorded == 1
        largest = model.engine.images.largest("audio")
        assert largest.size == model.encoder_memory["audio"].rows == most * ROWS * 64 * 4
        assert len(model.generate([sound((most - 1) * WINDOW)], max_tokens=1).tokens) == 1


def test_a_sound_that_no_context_holds():
    with load(context_length=16) as model:
        model.model.modalities()["audio"].prepare(sound(3 * WINDOW))
        with pytest.raises(AudioError, match=r"1\.6 s, 20 rows, and the context is 16 tokens"):
            model.generate([sound(4 * WINDOW)], max_tokens=1)


@pytest.mark.parametrize("shape", [(8, 40), (1, 40, 8), (1, 8, 39), (2, 9, 40)])
def test_spectra_that_do_not_fit(shape: tuple[int, ...]):
    with load() as model, pytest.raises(PromptError, match=r"\[windows, 8, 40\]"):
        model.encode_media("audio", np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ((np.zeros(0, np.float32), 16_000), "no samples"),
        ((np.full(9, np.nan, np.float32), 16_000), "sample 0 .* is nan"),
        ((np.zeros(9, np.float32), 12), "audio_rate_lowest"),
    ],
)
def test_bad_sounds(item: Any, shown: str):
    with load() as model, pytest.raises(AudioError, match=shown):
        model.generate([5, {"type": "audio", "audio": item}], max_tokens=1)


def test_a_prompt_begins_a_sound():
    with load() as model:
        net: Any = model.model
        inputs = net.audio_inputs(model.embeddings(sound(2 * WINDOW), "audio"))
        assert [one.token for one in inputs] == [25, *[24] * 2 * ROWS]
        assert [one.multimodal is not None for one in inputs[1::ROWS]] == [True, True]


def test_parts_of_messages_are_heard(tmp_path: Path):
    """As OpenAI spells them, with a template that knows no sounds."""
    folder = folder_of(tmp_path / "hf")
    given = pcm(np.linspace(-0.5, 0.5, WINDOW), 16_000)
    part = {"data": base64.b64encode(given).decode(), "format": "wav"}
    said = [{"type": "input_audio", "input_audio": part}, {"type": "text", "text": "hear"}]
    options: dict[str, Any] = {"template": TEMPLATE, "max_tokens": 4, "temperature": 0}
    with ggmodel.load(folder, context_length=64) as model:
        answer: Any = model.chat([{"role": "user", "content": said}], **options)
        again = model.generate("hear", audio=[given], max_tokens=4, temperature=0)
        assert answer.tokens == again.tokens
        assert answer.usage.prompt_tokens == 1 + ROWS + len("hear")
        with pytest.raises(TokenizerError, match=r"no special token <s>|no special token \[INST"):
            ggmodel.transcribe(model, given)


def test_files_have_llama_cpps_names(tmp_path: Path):
    folder = folder_of(tmp_path / "hf")
    text, mmproj, one = (tmp_path / f"{name}.gguf" for name in ("text", "mmproj", "one"))
    convert(folder, text, mmproj=mmproj, pre="gpt-2")
    convert(folder, one, "q8_0", pre="gpt-2")
    with open_gguf(mmproj) as file:
        keys = {k.removeprefix("clip."): v for k, v in file.metadata.items()}
        shapes = {name: t.shape for name, t in file.tensors.items() if ".blk.1." not in name}
    kinds = {name: str(t.dtype) for name, t in open_gguf(mmproj).tensors.items()}
    assert keys["projector_type"] == "voxtral" and keys["has_audio_encoder"] is True
    assert "has_vision_encoder" not in keys and "use_gelu" not in keys
    assert {k: v for k, v in keys.items() if k.startswith("audio.")} == {
        "audio.attention.head_count": 2,
        "audio.attention.layer_norm_epsilon": pytest.approx(1e-5),
        "audio.block_count": 2,
        "audio.context_length": 20,
        "audio.embedding_length": 32,
        "audio.feed_forward_length": 128,
        "audio.num_mel_bins": 8,
        "audio.projection_dim": 64,
        "audio.projector.stack_factor": 4,
    }
    square, wide = (32, 32), (32, 128)
    layer = {f"attn_{n}.weight": square for n in ("q", "k", "v", "out")}
    layer |= {f"attn_{n}.bias": (32,) for n in ("q", "v", "out")}
    layer |= {f"{n}.{end}": (32,) for n in ("ln1", "ln2") for end in ("weight", "bias")}
    layer |= {"ffn_up.weight": wide, "ffn_up.bias": (128,)}
    layer |= {"ffn_down.weight": wide[::-1], "ffn_down.bias": (32,)}
    assert shapes == {
        **{f"a.blk.0.{name}": shape for name, shape in layer.items()},
        "a.conv1d.1.weight": (3, 8, 32),
        "a.conv1d.1.bias": (1, 32),
        "a.conv1d.2.weight": (3, 32, 32),
        "a.conv1d.2.bias": (1, 32),
        "a.position_embd.weight": (32, 20),
        "a.post_ln.weight": (32,),
        "a.post_ln.bias": (32,),
        "mm.a.mlp.1.weight": (128, 64),
        "mm.a.mlp.2.weight": (64, 64),
    }
    assert {n for n, kind in kinds.items() if "F16" in kind} == {
        "a.conv1d.1.weight",
        "a.conv1d.2.weight",
    }
    with open_gguf(one) as file:  # the encoder keeps its type, as pictures' towers do
        assert "Q8_0" in str(file.tensors["blk.0.attn_q.weight"].dtype)
        assert "F32" in str(file.tensors["a.blk.0.attn_q.weight"].dtype)


@pytest.mark.parametrize(
    "changes", [{"feature_size": 80}, {"hop_length": 320}, {"sampling_rate": 8000}]
)
def test_another_preparation_is_refused(changes: dict[str, int], tmp_path: Path):
    with pytest.raises(Error, match=f"{next(iter(changes))} is"):
        ggmodel.load(folder_of(tmp_path / "hf", **changes), context_length=64)


def test_a_folder_with_tekken_json_alone(tmp_path: Path):
    """As published; the folder and the file converted from it are the same model."""
    folder = voxtrals.write(tmp_path / "hf")
    convert(folder, tmp_path / "a.gguf")
    given, answers = sound(WINDOW + 5), []
    for source in (folder, tmp_path / "a.gguf"):
        with ggmodel.load(source, context_length=64) as model:
            assert model.tokenize("[INST]é")[:2] == [1, 3]
            answer = model.generate("a", audio=[given], max_tokens=8, temperature=0)
            answers.append(list(answer.tokens))
            with pytest.raises(TemplateError, match="the file has no chat template"):
                model.chat([{"role": "user", "content": "a"}])
    assert answers[0] == answers[1] and len(answers[0]) == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"attention.head_count": 3},
        {"projector.stack_factor": 3},
        {"context_length": 2**31 - 1},
        {"num_mel_bins": 3000},
        {"block_count": 65_536},
    ],
)
def test_impossible_encoders(changes: dict[str, int]):
    source = source_of(load_golden("voxtral", "published"))
    source.metadata = {**source.metadata, **{f"voxtral.audio.{k}": v for k, v in changes.items()}}
    with pytest.raises(Error):
        ggmodel.load(source, context_length=64)


@pytest.mark.parametrize("changes", [{"hidden_size": 48}, {"intermediate_size": 100}])
def test_stacks_of_a_part_of_a_row(changes: dict[str, int]):
    config = cases.voxtral(changes)
    with pytest.raises(ConfigError, match="the first divides the second"):
        metadata_of(find("voxtral"), normalize(config))
