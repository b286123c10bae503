"""Tensors that no field reads: refused when strict, told otherwise, in files and in folders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import convert, from_hf
from ggmodel.convert.checkpoint_source import CheckpointSource
from ggmodel.convert.declaration import plan
from ggmodel.errors import LoadError
from ggmodel.gguf_file import TensorSource, open_gguf
from ggmodel.gguf_file.values import KeyValues
from ggmodel.model import LoadReport, config_class, find, find_hf
from ggmodel.model.report import Missing
from ggmodel.workbench.check import check
from tests.convert.folders import write_model, write_tokenizer
from tests.golden.files import load_embeddings, load_golden

Make = Callable[..., Path]
NORM = "model.layers.1.self_attn.q_norm.weight"
IN_FILE = "blk.1.attn_q_norm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Make:
    """A llama checkpoint with more tensors than the architecture reads."""

    def make(*names: str) -> Path:
        golden = load_golden("llama", "plain_gqa")
        more = {name: np.ones(16, np.float32) for name in names}
        path = write_model(tmp_path / "model", golden.config, golden.weights() | more)
        write_tokenizer(path, golden.config["vocab_size"])
        return path

    return make


@pytest.fixture(params=["file", "folder"])
def model(request: pytest.FixtureRequest, folder: Make, write_gguf, vary, tmp_path: Path) -> Path:
    """A model with a norm that no field reads."""
    if request.param == "folder":
        return folder(NORM)
    golden = load_golden("llama", "plain_gqa")
    source = from_hf(find("llama"), golden.config, golden.weights())
    return write_gguf(tmp_path / "a.gguf", vary(source, tensors={IN_FILE: np.ones(16, np.float32)}))


def opened(path: Path) -> TensorSource:
    return CheckpointSource.open(path) if path.is_dir() else open_gguf(path)


def leftover(path: Path) -> str:
    return NORM if path.is_dir() else IN_FILE


def test_loading_refuses_what_no_field_reads(model: Path):
    with pytest.raises(LoadError) as caught:
        ggmodel.load(model)
    text = str(caught.value)
    assert f"unused   {leftover(model)}; nearest is the field layers[1].attn" in text
    assert "strict=False (--no-strict)" in text
    assert ("the checkpoint" if model.is_dir() else "the file") in text
    assert caught.value.report is not None


def test_loading_warns_when_not_strict(model: Path):
    warned = pytest.warns(UserWarning, match=f"does not use {re.escape(leftover(model))}")
    with warned, ggmodel.load(model, strict=False) as loaded:
        assert loaded.report.unused == [leftover(model)]


@pytest.mark.parametrize("strict", [True, False])
def test_checking_lists_what_no_field_reads(model: Path, strict: bool):
    with opened(model) as source:
        result = check(source, strict=strict)
    assert result.ok is not strict
    found = result.problems if strict else result.warnings
    (unused,) = [f.message for f in found if f.kind == "unused"]
    assert unused.startswith(f"{leftover(model)}; nearest is the field layers[1].attn")


def test_converting_refuses_what_no_field_reads(folder: Make, tmp_path: Path):
    path, target = folder(NORM), tmp_path / "a.gguf"
    with pytest.raises(LoadError, match=f"checkpoint(.|\n)*unused +{re.escape(NORM)}"):
        convert(path, target)
    assert not target.exists()
    with pytest.warns(UserWarning, match=f"does not use {re.escape(NORM)}"):
        convert(path, target, strict=False)
    with ggmodel.load(target) as loaded:
        assert loaded.report.unused == []


def test_neither_of_two_files_is_written(tmp_path: Path):
    golden = load_golden("gemma3", "images")
    stray = {"vision_tower.vision_model.head.probe": np.ones(4, np.float32)}
    path = write_model(tmp_path / "model", golden.config, golden.weights() | stray)
    text, vision = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    with pytest.raises(LoadError, match=r"unused +vision_tower\.vision_model\.head\.probe"):
        convert(path, text, mmproj=vision)
    assert not text.exists() and not vision.exists()


def test_a_checkpoint_in_memory_is_held_to_the_same():
    golden = load_golden("llama", "plain_gqa")
    weights = golden.weights() | {NORM: np.ones(16, np.float32)}
    with pytest.raises(LoadError, match=f"unused +{re.escape(NORM)}"):
        from_hf(find("llama"), golden.config, weights)
    with pytest.warns(UserWarning, match=f"does not use {re.escape(NORM)}"):
        source = from_hf(find("llama"), golden.config, weights, strict=False)
    assert IN_FILE not in source.tensors


@pytest.mark.parametrize("tower", ["vision_tower.layers.{}.q", "model.visual.blocks.{}.q"])
def test_a_vision_tower_that_a_text_model_does_not_read_is_told(folder: Make, tower: str):
    path = folder(*(f"{tower.format(i)}.weight" for i in range(12)), "multi_modal_projector.weight")
    said = "13 of 13 unused tensors belong to a vision tower"
    with pytest.raises(LoadError, match=rf"and 5 more(.|\n)*{said}"):
        ggmodel.load(path)
    with pytest.warns(UserWarning, match=rf"and 5 more\n{said}"):
        ggmodel.load(path, strict=False).close()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["v.blk.0.attn_q.weight", "mm.0.bias"],
            ["2 of 2 unused tensors belong to a vision tower"],
        ),
        (["model.connector.proj.weight", "model.image_newline"], ["2 of 2 .* a vision tower"]),
        (
            ["model.vision_tower.q", "model.audio_tower.q", "model.embed_audio.w", "a.blk.0.q"],
            ["1 of 4 .* a vision tower", "3 of 4 .* an audio tower, which this architecture does"],
        ),
        (["model.layers.0.self_attn.v.bias", "model.layers.0.mm.a.weight", "model.av.q"], []),
    ],
)
def test_towers_are_known_by_their_names(names: list[str], said: list[str]):
    towers = LoadReport("llama", unused=names).towers
    assert len(towers) == len(said)
    assert all(re.match(want, got) for want, got in zip(said, towers, strict=True))


@pytest.mark.parametrize("strict", [True, False])
def test_checking_tells_of_a_tower(folder: Make, strict: bool):
    path = folder("model.visual.blocks.0.q.weight", NORM)
    with opened(path) as source:
        result = check(source, strict=strict)
    found = result.problems if strict else result.warnings
    (tower,) = [f.message for f in found if f.kind == "tower"]
    assert tower.startswith("1 of 2 unused tensors belong to a vision tower, which this archit")


def test_a_tower_is_told_beside_what_is_missing(folder: Make):
    path = folder("model.visual.blocks.0.q.weight")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(LoadError, match=r"missing +layers\[2\]"):
        ggmodel.load(path)
    report = LoadReport("llama", missing=[Missing("head", ("output",))], unused=["v.blk.0.q"])
    with pytest.raises(LoadError, match=r"missing +head(.|\n)*1 of 1 unused .* a vision tower"):
        report.check()


INV_FREQ = "model.layers.{}.self_attn.rotary_emb.inv_freq"


def test_angles_of_rope_that_old_checkpoints_hold_are_no_leftovers(folder: Make):
    with ggmodel.load(folder(INV_FREQ.format(0), INV_FREQ.format(1))) as loaded:
        assert loaded.report.unused == []


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freqs",
        "model.layers.0.self_attn.rotary_emb.weight",
        "model.rotary.inv_freq.weight",
        "model.layers.0.self_attn.position_ids",
        "pooler.dense.weight",
    ],
)
def test_what_is_only_alike_is_one(folder: Make, name: str):
    with pytest.raises(LoadError, match=f"unused +{re.escape(name)}"):
        ggmodel.load(folder(name))


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_a_bert_does_without_its_heads(prefix: str):
    golden = load_embeddings("bert", "released")
    weights = {f"{prefix}{name}": values for name, values in golden.weights().items()}
    names = ["embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"]
    heads = ["cls.predictions.bias", "cls.predictions.transform.LayerNorm.weight"]
    names = [prefix + name for name in names] + [*heads, "cls.seq_relationship.bias"]
    weights |= {name: np.ones(4, np.float32) for name in names}
    from_hf(find_hf(["BertModel"]), golden.config, weights)
    with pytest.raises(LoadError, match=r"unused +qa_outputs\.weight"):
        from_hf(
            find_hf(["BertModel"]),
            golden.config,
            weights | {"qa_outputs.weight": np.ones(4, np.float32)},
        )


def test_what_the_golden_checkpoints_leave_over_is_declared():
    golden = load_embeddings("bert", "released")
    architecture = find("bert")
    metadata = from_hf(architecture, golden.config, golden.weights()).metadata
    config = config_class(architecture).read(KeyValues(metadata, "bert"))
    report = plan(architecture, config, golden.tensors).report
    assert report.ignored == ["pooler.dense.bias", "pooler.dense.weight"]
    assert report.unused == []
