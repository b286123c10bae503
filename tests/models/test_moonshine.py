"""Moonshine: sounds of any length, configurations, transcripts and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import Input
from ggmodel.audio import Audio
from ggmodel.convert import convert, from_hf, metadata_of, normalize
from ggmodel.convert.keys import recorded, with_defaults
from ggmodel.errors import AudioError, Error, Unsupported
from ggmodel.gguf_file import open_gguf
from ggmodel.model import find
from ggmodel.models.moonshine.config import rows_of
from ggmodel.runner import LoadedModel
from ggmodel.transcript import transcribe
from ggmodel.workbench.golden import nmse, source_of
from tests.audio.sounds import pcm, tones
from tests.convert.folders import write_golden
from tests.golden.files import load_golden
from tests.golden.moonshine.cases import START

# As UsefulSensors/moonshine-tiny has it.
FEATURES = {
    "do_normalize": False,
    "feature_extractor_type": "Wav2Vec2FeatureExtractor",
    "feature_size": 1,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "Wav2Vec2Processor",
    "return_attention_mask": True,
    "sampling_rate": 16_000,
}


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    options: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", "threads": 1}
    with ggmodel.load(source_of(load_golden("moonshine", "published")), **options) as loaded:
        yield loaded


def sound(samples: int) -> Audio:
    values = np.random.default_rng(samples).normal(size=samples).astype(np.float32)
    return Audio(values, 16_000)


@pytest.mark.parametrize("case", ["published", "odd"])
def test_both_spellings_of_a_config_say_the_same(case: str):
    golden, cls = load_golden("moonshine", case), find("moonshine")
    old, new = (
        metadata_of(cls, with_defaults(cls, hf, normalize(hf), recorded(hf)))
        for hf in (golden.config, golden.saved_config)
    )
    assert old == new
    assert old["moonshine.rope.dimension_count"] == {"published": 14, "odd": 32}[case]


# As transformers counts them (`_get_feat_extract_output_lengths`).
@pytest.mark.parametrize(
    ("samples", "rows"), [(895, 1), (1278, 1), (1279, 2), (16_000, 40), (480_000, 1248)]
)
def test_rows_of_a_sound(model: LoadedModel, samples: int, rows: int):
    assert rows_of(samples) == rows
    if samples <= 16_000:
        (made,) = model.embeddings(sound(samples), "audio")
        assert len(made.rows) == rows
    assert rows_of(894) == 0


def test_samples_that_no_row_hears_change_its_norm_alone(model: LoadedModel):
    """The first norm is one of the whole sound, so that rows are not those of a part of it."""
    whole = sound(4000)
    (rows,) = model.encode_media("audio", whole)
    (part,) = model.encode_media("audio", Audio(whole.samples[:3199], 16_000))
    assert len(rows.rows) == 9 and len(part.rows) == 7
    assert nmse(part.rows, rows.rows[:7]) > 1e-5


@pytest.mark.parametrize(
    ("samples", "shown"),
    [
        (894, "the sound has 894 samples, too few for a row"),
        (480_100, r"the sound has 30\.0 s, and this model hears 30 s at once; give it in parts"),
    ],
)
def test_sounds_that_it_cannot_hear(model: LoadedModel, samples: int, shown: str):
    with pytest.raises(AudioError, match=shown):
        model.embeddings(sound(samples), "audio")


def folder_of(path: Path, **features: Any) -> Path:
    folder, _ = write_golden(path, "moonshine", "published")
    keys = {key: value for key, value in {**FEATURES, **features}.items() if value is not ...}
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))
    return folder


def test_a_folder_and_its_file_transcribe_alike(tmp_path: Path):
    """The likeliest tokens behind the start, to which the sound belongs."""
    folder, recording = folder_of(tmp_path / "hf"), pcm(tones(0.4))
    convert(folder, tmp_path / "a.gguf", pre="gpt-2")
    transcripts = []
    for source in (folder, tmp_path / "a.gguf"):
        with ggmodel.load(source, kv_type="f32", context_length=24) as loaded:
            transcript = transcribe(loaded, recording)
            (segment,) = transcript.segments
            inputs = loaded.model.modalities()["audio"].inputs(
                loaded.embeddings(recording, "audio")
            )
            assert [one.token for one in inputs if isinstance(one, Input)] == [START]
            assert loaded.logits([*inputs])[-1].argmax() == segment.tokens[0]
            with pytest.raises(Unsupported, match="gives no timestamps"):
                transcribe(loaded, recording, timestamps=True)
            transcripts.append((segment.tokens, transcript.text))
    assert transcripts[0] == transcripts[1] and len(transcripts[0][0]) > 0


def test_names_in_a_file(tmp_path: Path):
    convert(folder_of(tmp_path / "hf"), tmp_path / "a.gguf", pre="gpt-2")
    with open_gguf(tmp_path / "a.gguf") as file:
        shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    assert shapes["a.conv1d.1.weight"] == (127, 1, 64) and "a.conv1d.1.bias" not in shapes
    assert shapes["a.conv1d.2.weight"] == (7, 64, 128)
    assert shapes["a.conv_norm.weight"] == shapes["a.post_ln.weight"] == (64,)
    assert shapes["blk.0.ffn_gate.weight"] == shapes["blk.0.ffn_up.weight"] == (64, 96)
    assert shapes["blk.2.cross_attn_q.weight"] == (64, 64) and "output.weight" not in shapes


@pytest.mark.parametrize(
    "changes", [{"do_normalize": True}, {"do_normalize": ...}, {"sampling_rate": 8000}]
)
def test_another_preparation_is_refused(changes: dict[str, Any], tmp_path: Path):
    with pytest.raises(Error, match=f"{next(iter(changes))} is"):
        ggmodel.load(folder_of(tmp_path / "hf", **changes))


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"decoder_num_attention_heads": 2}, "decoder_num_attention_heads is 2; supported: 4"),
        ({"decoder_num_key_value_heads": 2}, "decoder_num_key_value_heads is 2; supported: 4"),
        ({"encoder_num_key_value_heads": 2}, "encoder_num_key_value_heads is 2; supported: 4"),
        ({"partial_rotary_factor": 0.7}, "partial_rotary_factor 0.7: 11 of 16 elements; supported"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor 2.0: 32 of 16 elements; supported"),
        ({"encoder_num_attention_heads": 0}, "encoder_num_attention_heads 0, "),
        ({"decoder_start_token_id": -5}, "decoder_start_token_id is -5"),
    ],
)
def test_what_transformers_computes_otherwise_is_refused(changes: dict[str, Any], shown: str):
    golden = load_golden("moonshine", "published")
    with pytest.raises(Error, match=shown):
        from_hf(find("moonshine"), golden.config | changes, golden.weights())
