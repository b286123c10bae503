"""Gemma 3n with sounds and images against transformers; its text is tested in `test_text.py`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.audio import Audio
from ggmodel.convert import convert
from ggmodel.convert.declaration import Pair, pairs
from ggmodel.errors import AudioError, ConfigError, PromptError
from ggmodel.gguf_file import DType, MemorySource, open_gguf
from ggmodel.models.gemma3n.config import Gemma3nConfig
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench.diff.inputs import same_tokens
from ggmodel.workbench.golden import Golden, laid_out, nmse, source_of
from ggmodel.workbench.observe import prompt_with
from tests.conftest import Vary
from tests.convert.folders import write_golden
from tests.golden.files import GREEDY, load_golden
from tests.golden.gemma3n.cases import BOUNDS, HEARING, IMAGE, SEEING, SIDE, SOUND, SPECIAL
from tests.models.words import Words

EXACT = 1e-10


def load(golden: Golden, **options: Any) -> LoadedModel:
    given: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off", **options}
    model = ggmodel.load(source_of(golden), **given)
    model.model.tokenizer = Words(SPECIAL)
    return model


@pytest.fixture(params=[*HEARING, *SEEING])
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden("gemma3n", request.param)


def sees(golden: Golden) -> bool:
    return any(item.kind == "image" for item in golden.pictures.values())


def bound_of(golden: Golden) -> float:
    """ggml's GELU reads a table in F16."""
    return BOUNDS["images" if sees(golden) else "sounds"]


def encoded(model: LoadedModel, golden: Golden, name: str) -> np.ndarray:
    item = golden.pictures[name]
    return np.concatenate([e.rows for e in model.encode_media(item.kind, item.pixels)])


@pytest.mark.parametrize("flash_attention", ["off", "on"])
@pytest.mark.parametrize("batch_size", [512, 5])
def test_text_with_items(golden: Golden, flash_attention: str, batch_size: int):
    bound = bound_of(golden)
    with load(golden, flash_attention=flash_attention, batch_size=batch_size) as model:
        for name, item in golden.pictures.items():
            # No encoder of sounds has a GELU, whose table in F16 ggml reads.
            assert nmse(encoded(model, golden, name), item.rows) < (
                EXACT if item.kind == "audio" else bound
            )
        for prompt in golden.prompts.values():
            given = laid_out(model, golden, prompt)
            assert nmse(model.logits(given), prompt.logits) < bound
            done = model.generate(given, max_tokens=GREEDY, temperature=0)
            assert done.tokens == prompt.greedy.tolist()


def test_without_ggml(golden: Golden):
    with load(golden, backend="reference") as model:
        for name, sound in golden.pictures.items():
            assert nmse(encoded(model, golden, name), sound.rows) < EXACT
        prompt = golden.prompts["two"]
        assert nmse(model.logits(laid_out(model, golden, prompt)), prompt.logits) < EXACT


def test_the_config_that_transformers_writes(golden: Golden):
    from dataclasses import replace

    old, saved = (source_of(g) for g in (golden, replace(golden, config=golden.saved_config)))
    assert str(old.metadata) == str(saved.metadata)


def test_the_reference_is_given_the_same_prompt(golden: Golden):
    """Where items stand, also the token that ends one. The reference's projectors are called for
    text, too, so that they are not compared."""
    prompt, names = golden.prompts["two"], [p.path for p in pairs_of(golden)]
    placeholder, tower = (IMAGE, "vision") if sees(golden) else (SOUND, "audio")
    ids = prompt.ids.tolist()
    with load(golden) as model:
        assert same_tokens(model, laid_out(model, golden, prompt), ids, placeholder) == ""
        items = [golden.pictures[p] for p in prompt.parts if isinstance(p, str)]
        seen = [e for item in items for e in model.encode_media(item.kind, item.pixels)]
        numbers = prompt_with(model, ids, placeholder, seen)
        assert nmse(Scoring(model.engine).all_logits(numbers), prompt.logits) < bound_of(golden)
    assert tower in names and not [name for name in names if "projector" in name]


def pairs_of(golden: Golden) -> list[Pair]:
    with load(golden) as model:
        return pairs(model.model, golden.tensors)


def test_both_files_of_llama_cpps_layout(tmp_path: Path):
    folder, golden = write_golden(tmp_path / "hf", "gemma3n", "sounds")
    files = tmp_path / "a.gguf", tmp_path / "mmproj.gguf"
    convert(folder, files[0], mmproj=files[1], pre="gpt-2")
    with open_gguf(files[0]) as text, open_gguf(files[1]) as tower:
        assert not [k for k in text.metadata if ".audio." in k]
        found = {k: v for k, v in tower.metadata.items() if k.startswith("clip.")}
        names = {*tower.tensors}
    # As llama.cpp's converter writes them.
    said = {
        "clip.has_audio_encoder": True,
        "clip.audio.projector_type": "gemma3na",
        "clip.audio.projection_dim": 64,
        "clip.audio.embedding_length": 32,
        "clip.audio.feed_forward_length": 128,
        "clip.audio.block_count": 2,
        "clip.audio.attention.head_count": 4,
        "clip.audio.num_mel_bins": 16,
    }
    assert said.items() <= found.items()
    of_a_layer = """attn_k.weight attn_out.weight attn_q.weight attn_v.weight conv_dw.weight
        conv_norm.weight conv_pw1.weight conv_pw2.weight ffn_down.weight ffn_down_1.weight
        ffn_norm.weight ffn_norm_1.weight ffn_post_norm.weight ffn_post_norm_1.weight ffn_up.weight
        ffn_up_1.weight layer_pre_norm.weight linear_pos.weight ln1.weight ln2.weight
        norm_conv.weight per_dim_scale""".split()
    assert {n for n in names if n.startswith("a.blk.1.")} == {f"a.blk.1.{n}" for n in of_a_layer}
    assert {n for n in names if n.startswith(("a.", "mm.a.")) and ".blk." not in n} == {
        *("a.conv1d.0.weight", "a.conv1d.0.norm.weight", "a.conv1d.1.weight"),
        *("a.conv1d.1.norm.weight", "a.pre_encode.out.weight", "mm.a.embedding.weight"),
        *("mm.a.hard_emb_norm.weight", "mm.a.soft_emb_norm.weight"),
        "mm.a.input_projection.weight",
    }
    with ggmodel.load(files[0], mmproj=files[1], kv_type="f32") as model:
        for name, sound in golden.pictures.items():
            assert nmse(encoded(model, golden, name), sound.rows) < EXACT


OF_BLOCKS = {
    "0.1": "conv_exp bn1 conv_pwl bn2",
    "1.0": "dw_start.conv dw_start.bn pw_exp.conv pw_exp.bn dw_mid.conv dw_mid.bn pw_proj.conv "
    "pw_proj.bn layer_scale",
    "2.1": "norm attn.query.proj attn.key.proj attn.value.proj attn.output.proj attn.key.down_conv "
    "attn.key.norm attn.value.down_conv attn.value.norm layer_scale",
    "3.2": "pw_exp.conv pw_exp.bn pw_proj.conv pw_proj.bn layer_scale",
}


def test_images_in_llama_cpps_layout(tmp_path: Path):
    folder, golden = write_golden(tmp_path / "hf", "gemma3n", "images")
    # Sounds have theirs in the same file.
    prepared = {**golden.config["preprocessor:"], "feature_size": 16}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    files = tmp_path / "a.gguf", tmp_path / "mmproj.gguf"
    convert(folder, files[0], "F16", mmproj=files[1], pre="gpt-2")
    # As llama.cpp's converter writes them.
    said = {
        "clip.has_vision_encoder": True,
        "clip.vision.projector_type": "gemma3nv",
        "clip.vision.image_size": SIDE,
        "clip.vision.patch_size": SIDE // 4,
        "clip.vision.embedding_length": 2048,
        "clip.vision.feed_forward_length": 8192,
        "clip.vision.projection_dim": 64,
        "clip.vision.block_count": 128,
        "clip.vision.attention.head_count": 8,
        "clip.vision.image_mean": [0.0] * 3,
        "clip.vision.image_std": [1.0] * 3,
    }
    with open_gguf(files[1]) as tower:
        assert {key: tower.metadata[key] for key in said} == said
        eps = tower.metadata["clip.vision.attention.layer_norm_epsilon"]
        shapes = {t.name: t.shape for t in tower.tensors.values()}
        types = {t.name: t.dtype for t in tower.tensors.values()}
    assert types["v.conv_stem.conv.weight"] == DType.F32
    for kernel in ("1.0.dw_start.conv", "1.0.dw_mid.conv", "2.1.attn.key.down_conv"):
        assert types[f"v.blk.{kernel}.weight"] == DType.F16  # which llama.cpp needs
    assert types["v.blk.1.0.pw_exp.conv.weight"] == DType.F32
    assert eps == pytest.approx(1e-6)
    for block, parts in OF_BLOCKS.items():
        begin, ending = f"v.blk.{block}.", {"layer_scale": "gamma"}
        wanted = {f"{begin}{part}.{ending.get(part, 'weight')}" for part in parts.split()}
        assert {n for n in shapes if n.startswith(begin)} == wanted
    outside = "msfa.ffn.pw_exp.conv msfa.ffn.pw_exp.bn msfa.ffn.pw_proj.conv msfa.ffn.pw_proj.bn"
    assert {n for n in shapes if n.startswith("v.") and ".blk." not in n} == {
        *(f"v.{part}.weight" for part in [*outside.split(), "msfa.norm"]),
        *(f"v.conv_stem.{part}" for part in ("conv.weight", "conv.bias", "bn.weight")),
    }
    assert shapes["v.conv_stem.conv.bias"] == (1, 1, 24, 1)
    assert shapes["v.blk.1.0.layer_scale.gamma"] == (1, 1, 24, 1)  # which llama.cpp multiplies with
    assert {n for n in shapes if n.startswith("mm.") and not n.startswith("mm.a.")} == {
        f"mm.{n}.weight"
        for n in ("embedding", "hard_emb_norm", "soft_emb_norm", "input_projection")
    }
    with ggmodel.load(files[0], mmproj=files[1], kv_type="f32") as model:
        for name in ("red", "blue"):
            rows = encoded(model, golden, name)
            assert nmse(rows, golden.pictures[name].rows) < BOUNDS["images"]


def test_scales_of_one_dim_are_read():
    """As a state of llama.cpp's converter writes them."""
    golden = load_golden("gemma3n", "images")
    usual = source_of(golden)
    tensors: dict[str, Any] = {}
    for name, t in usual.tensors.items():
        shape = (t.n_elements,) if name.endswith("layer_scale.gamma") else t.shape
        tensors[name] = (t.dtype, shape, bytes(usual.data(name)))
    with ggmodel.load(MemorySource(usual.metadata, tensors), flash_attention="off") as model:
        assert model.source.tensors["v.blk.1.0.layer_scale.gamma"].shape == (24,)
        rows = encoded(model, golden, "red")
    assert nmse(rows, golden.pictures["red"].rows) < BOUNDS["images"]


def test_an_image_becomes_pixels():
    with load(load_golden("gemma3n", "images")) as model:
        way = model.model.modalities()["image"]
        assert way.largest().size == (SIDE, SIDE)
        colour = way.prepare(Image.new("RGB", (30, 7), (255, 51, 0))).values
        assert colour.shape == (1, 3, SIDE, SIDE)
        assert colour[0, :, 5, 5] == pytest.approx([1.0, 0.2, 0.0])
        rows, end = model.encode_media("image", Image.new("RGB", (7, 30)))
        assert rows.shape == (4, 64) and end.shape == (1, 64)


def test_the_published_network():
    """No key of a config or a file has its blocks."""
    config = load_golden("gemma3n", "images").config
    tower = {**config["vision_config"], "model_args": None}
    given = {**config, "vision_config": tower, "vision_soft_tokens_per_image": 256}
    assert Gemma3nConfig.published("stages", given) is None
    with load(load_golden("gemma3n", "published")) as model:
        h = model.model.config
        assert [h.blocks_0, h.blocks_1, h.blocks_2, h.blocks_3] == [3, 5, 37, 39]
        assert (h.side, h.grid, h.rows) == (768, 16, 256)
        assert (h.image_begins, h.image_ends) == (255999, 262144)


NETWORKS: dict[str, tuple[Any, str]] = {
    "a stage less": (lambda a: a["block_args"].pop(), "has 3 stages; supported: 4"),
    "another block": (lambda a: _first(a).update(block_type="ir"), "is a block 'ir'; supported"),
    "no stride": (lambda a: _first(a).update(stride=1), "has stride = 1, which is unsupported"),
    "squeezed": (lambda a: _first(a).update(se_ratio=0.25), "se_ratio = 0.25"),
    "another function": (lambda a: _first(a).update(act_layer="relu"), "act_layer = 'relu'"),
    "a key": (lambda a: _first(a).update(s2d=1), "s2d = 1"),
    "groups": (lambda a: a.update(use_groups=4), "model_args has 'use_groups'"),
    "rows": (lambda a: a.update(msfa_output_resolution=3), "makes no 4 vision_soft_tokens"),
}


def _first(network: dict[str, Any]) -> dict[str, Any]:
    return network["block_args"][0][0]


@pytest.mark.parametrize("change", NETWORKS)
def test_other_networks(change: str):
    config = copy.deepcopy(load_golden("gemma3n", "images").config)
    make, message = NETWORKS[change]
    make(config["vision_config"]["model_args"])
    with pytest.raises(ConfigError, match=message):
        Gemma3nConfig.published("stages", config)


def test_a_sound_becomes_a_spectrum():
    with load(load_golden("gemma3n", "sounds")) as model:
        way = model.model.modalities()["audio"]
        most = way.largest()
        assert most.seconds == pytest.approx(6 * 8 * 0.01)
        assert way.prepare(most).values.shape == (45, 16)
        samples = np.sin(np.arange(3000) / 9).astype(np.float32)
        rows, end = model.encode_media("audio", Audio(samples, 16_000))
        assert rows.shape == (6, 64) and end.shape == (1, 64)


def test_sounds_that_do_not_fit():
    with load(load_golden("gemma3n", "sounds")) as model:
        with pytest.raises(AudioError, match=r"has 1.0 s, and this model hears 0.48 s at once"):
            model.encode_media("audio", Audio(np.zeros(16_000, np.float32), 16_000))
        with pytest.raises(AudioError, match="shorter than a frame"):
            model.encode_media("audio", Audio(np.zeros(300, np.float32), 16_000))
        for shape, said in (
            ((49, 16), "49 frames; this model takes up to 48"),
            ((0, 16), "it holds no numbers"),
            ((5, 15), r"this model takes \[frames, 16\]"),
        ):
            with pytest.raises(PromptError, match=said):
                model.encode_media("audio", np.zeros(shape, np.float32))


def test_half_of_what_hears_is_not_enough(vary: Vary):
    source = source_of(load_golden("gemma3n", "sounds"))
    deaf = vary(source, drop=tuple(n for n in source.tensors if n.startswith("mm.a.")))
    with ggmodel.load(deaf) as model:
        assert [*model.model.modalities()] == ["image"]
    both = vary(source, drop=tuple(n for n in source.tensors if n.startswith("mm.")))
    with ggmodel.load(both) as model:
        assert not model.model.modalities()


BAD: dict[str, tuple[Any, str]] = {
    "attention.head_count": (0, "head_count is 0; it must divide 16.0"),
    "attention.head_count ": (5, "head_count is 5; it must divide 16.0"),
    "num_mel_bins": (20, "num_mel_bins is 20, and 4 channels of 16 numbers have 16"),
    "soft_tokens": (2**31 - 1, "soft_tokens is 2147483647; it must be 375 or less"),
    "attention.context_left": (66, "context_left is 66; it must be 65 or less"),
    "attention.context_right": (65, "context_right is 65; it must be 64 or less"),
    "begin_token_id": (80, "begin_token_id is 80 of 80 tokens"),
    "end": (8, "audio.end is 8 of 8 tokens"),
    "filler": (-1, "audio.filler is -1 of 8 tokens"),
    "projector.stack_factor": (0, "must be 1 or more"),
    "attention.logit_softcapping": (0.0, "logit_softcapping is 0.0; it must be 1e-06 or more"),
    "block_count": (3, "a.blk.2"),
}


BLIND: dict[str, tuple[Any, str]] = {
    "image_size": (48, "supported: multiples of 32 and of 16 × 2, the root of 4 rows, up to 1536"),
    "image_size ": (3072, "up to 1536"),
    "soft_tokens": (5, "soft_tokens is 5, no square"),
    "stages": ([2, 2, 3], "it has 4 numbers"),
    "stages ": ([2, 2, 3, -1], "-1 entries"),
    "stages  ": ([2, 2, 4, 3], "v.blk.2.3"),
    "stages   ": ([2, 2, 2, 3], "v.blk.2.2"),
    "end": (8, "vision.end is 8 of 8 tokens"),
    "begin_token_id": (80, "begin_token_id is 80 of 80 tokens"),
    "embedding_length": (1024, "shape"),
}


@pytest.mark.parametrize("key", BLIND)
def test_bad_metadata_of_images(vary: Vary, key: str):
    value, message = BLIND[key]
    source = source_of(load_golden("gemma3n", "images"))
    with pytest.raises(ggmodel.Error, match=message):
        ggmodel.load(vary(source, metadata={f"gemma3n.vision.{key.strip()}": value}))


def test_blocks_that_make_no_stage(vary: Vary):
    source = source_of(load_golden("gemma3n", "images"))
    kernels = tuple(n for n in source.tensors if n.startswith("v.blk.1.0.dw_"))
    with pytest.raises(ConfigError, match=r"v.blk.1.0 is the first of a stage, and has no kernel"):
        ggmodel.load(vary(source, drop=kernels))


@pytest.mark.parametrize("key", BAD)
def test_bad_metadata(vary: Vary, key: str):
    value, message = BAD[key]
    source = source_of(load_golden("gemma3n", "sounds"))
    with pytest.raises((ConfigError, ggmodel.Error), match=message):
        ggmodel.load(vary(source, metadata={f"gemma3n.audio.{key.strip()}": value}))
