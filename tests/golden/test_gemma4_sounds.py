"""Gemma 4 with sounds against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.audio import Audio
from ggmodel.convert import convert
from ggmodel.errors import AudioError, PromptError
from ggmodel.gguf_file import open_gguf
from ggmodel.models.gemma4.audio import Softplus
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import Golden, laid_out, nmse, source_of
from tests.conftest import Vary
from tests.convert.folders import write_golden
from tests.golden.files import GREEDY, load_golden
from tests.golden.gemma4.cases import HEARING, SPECIAL
from tests.models.words import Words

TABLE = 1e-6  # ggml's GELU reads a table in F16
EXACT = 1e-10


def load(golden: Golden, **options: Any) -> LoadedModel:
    given: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", **options}
    model = ggmodel.load(source_of(golden), **given)
    model.model.tokenizer = Words(SPECIAL)
    return model


@pytest.fixture(params=HEARING)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden("gemma4", request.param)


def encoded(model: LoadedModel, golden: Golden, name: str) -> np.ndarray:
    picture = golden.pictures[name]
    (found,) = model.encode_media(picture.kind, picture.pixels)
    return found.rows


@pytest.mark.parametrize("batch_size", [512, 5])
def test_text_with_sounds(golden: Golden, batch_size: int):
    with load(golden, batch_size=batch_size) as model:
        for name, item in golden.pictures.items():
            assert nmse(encoded(model, golden, name), item.rows) < TABLE
        for prompt in golden.prompts.values():
            given = laid_out(model, golden, prompt)
            assert nmse(model.logits(given), prompt.logits) < TABLE
            done = model.generate(given, max_tokens=GREEDY, temperature=0)
            assert done.tokens == prompt.greedy.tolist()


def test_without_ggml(golden: Golden):
    with load(golden, backend="reference") as model:
        for name, item in golden.pictures.items():
            assert nmse(encoded(model, golden, name), item.rows) < EXACT
        for prompt in golden.prompts.values():
            assert nmse(model.logits(laid_out(model, golden, prompt)), prompt.logits) < EXACT


def test_both_files_of_llama_cpps_layout(tmp_path: Path):
    folder, golden = write_golden(tmp_path / "hf", "gemma4", "sounds")
    files = tmp_path / "a.gguf", tmp_path / "mmproj.gguf"
    convert(folder, files[0], mmproj=files[1], pre="gpt-2")
    with open_gguf(files[0]) as text, open_gguf(files[1]) as tower:
        assert not [k for k in text.metadata if ".audio." in k]
        found, names = dict(tower.metadata), {*tower.tensors}
        shape = tower.tensors["a.blk.0.conv_dw.weight"].shape
    said = {
        "clip.has_audio_encoder": True,
        "clip.has_vision_encoder": True,
        "clip.vision.projector_type": "gemma4v",
        "clip.audio.projector_type": "gemma4a",
        "clip.audio.projection_dim": 64,
        "clip.audio.embedding_length": 32,
        "clip.audio.feed_forward_length": 128,
        "clip.audio.block_count": 2,
        "clip.audio.attention.head_count": 4,
        "clip.audio.attention.layer_norm_epsilon": pytest.approx(1e-6),
        "clip.audio.num_mel_bins": 16,
    }
    assert {k: found.get(k) for k in said} == said
    assert "clip.projector_type" not in found  # llama.cpp would read it for both towers
    assert shape == (5, 32)
    # The tensors that llama.cpp reads of a layer, with the bounds of its maps.
    maps = """attn_k attn_out attn_q attn_v conv_pw1 conv_pw2 ffn_down ffn_down_1 ffn_up
        ffn_up_1""".split()
    bounds = [f"{m}.{side}_{end}" for m in maps for side in ("input", "output") for end in BOTH]
    others = """attn_k_rel attn_post_norm attn_pre_norm conv_dw conv_norm ffn_norm ffn_norm_1
        ffn_post_norm ffn_post_norm_1 ln2 norm_conv per_dim_scale""".split()
    of_a_layer = {*bounds, *(f"{name}.weight" for name in (*maps, *others))}
    assert {n for n in names if n.startswith("a.blk.1.")} == {f"a.blk.1.{n}" for n in of_a_layer}
    assert {n for n in names if n.startswith(("a.", "mm.a.")) and ".blk." not in n} == {
        *("a.conv1d.0.weight", "a.conv1d.0.norm.weight", "a.conv1d.1.weight"),
        *("a.conv1d.1.norm.weight", "a.input_projection.weight", "a.pre_encode.out.weight"),
        *("a.pre_encode.out.bias", "mm.a.input_projection.weight"),
    }
    with ggmodel.load(files[0], mmproj=files[1], kv_type="f32") as model:
        for name in ("long", "dot"):
            assert nmse(encoded(model, golden, name), golden.pictures[name].rows) < TABLE


BOTH = "min", "max"


def test_a_model_without_ears_has_no_keys_of_them(tmp_path: Path):
    folder, _ = write_golden(tmp_path / "hf", "gemma4", "images")
    convert(folder, tmp_path / "a.gguf", mmproj=tmp_path / "mmproj.gguf", pre="gpt-2")
    with open_gguf(tmp_path / "mmproj.gguf") as tower:
        assert not [k for k in tower.metadata if "audio" in k]
    with load(load_golden("gemma4", "images")) as model:
        assert {*model.model.modalities()} == {"image"}


def test_the_scales_of_a_head_are_stored_as_they_count():
    config: Any = None
    x = np.array([-9.0, 0.0, 0.3, 40.0], np.float32)
    stored = Softplus().to_gguf(x, config)
    assert np.allclose(stored, np.log1p(np.exp(x.astype(np.float64))), rtol=1e-6)
    assert np.allclose(Softplus().to_hf(stored, config), x, rtol=1e-3)


def test_a_sound_becomes_a_spectrum():
    with load(load_golden("gemma4", "sounds")) as model:
        way = model.model.modalities()["audio"]
        assert way.largest().seconds == 30
        assert way.prepare(way.largest()).values.shape == (2999, 16)
        samples = np.sin(np.arange(3000) / 9).astype(np.float32)
        (rows,) = model.encode_media("audio", Audio(samples, 16_000))
        assert rows.shape == (5, 64)


def test_sounds_that_do_not_fit():
    with load(load_golden("gemma4", "sounds")) as model:
        with pytest.raises(AudioError, match=r"has 30.1 s, and this model hears 30 s at once"):
            model.encode_media("audio", Audio(np.zeros(481_000, np.float32), 16_000))
        with pytest.raises(AudioError, match="shorter than a frame"):
            model.encode_media("audio", Audio(np.zeros(100, np.float32), 16_000))
        for shape, said in (
            ((3001, 16), "3001 frames; this model takes up to 3000"),
            ((0, 16), "it holds no numbers"),
            ((5, 15), r"this model takes \[frames, 16\]"),
        ):
            with pytest.raises(PromptError, match=said):
                model.encode_media("audio", np.zeros(shape, np.float32))


BAD: dict[str, tuple[Any, str]] = {
    "attention.head_count": (8, "per_dim_scale"),
    "num_mel_bins": (20, "num_mel_bins is 20, and 4 channels of 16 numbers have 16"),
    "attention.context_left": (67, "context_left is 67; it must be 66 or less"),
    "attention.context_left ": (1, "context_left is 1; it must be 2 or more"),
    "embedding_length": (16, "shape"),
    "attention.logit_softcapping": (0.0, "logit_softcapping is 0.0; it must be 1e-06 or more"),
    "block_count": (3, "a.blk.2"),
}


@pytest.mark.parametrize("key", BAD)
def test_bad_metadata(vary: Vary, key: str):
    value, message = BAD[key]
    source = source_of(load_golden("gemma4", "sounds"))
    with pytest.raises(ggmodel.Error, match=message):
        ggmodel.load(vary(source, metadata={f"gemma4.audio.{key.strip()}": value}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention_context_right", 2, "attention_context_right is 2; supported: 0"),
        ("attention_chunk_size", 7, "attention_chunk_size is 7; supported: 4"),
        ("gradient_clipping", 1.0, "gradient_clipping is 1.0"),
        ("hidden_act", "softsign", "softsign"),
    ],
)
def test_configs_that_are_refused(key: str, value: Any, message: str):
    from dataclasses import replace

    golden = load_golden("gemma4", "sounds")
    config = {**golden.config, "audio_config": {**golden.config["audio_config"], key: value}}
    with pytest.raises(ggmodel.Error, match=message):
        ggmodel.load(source_of(replace(golden, config=config)))
