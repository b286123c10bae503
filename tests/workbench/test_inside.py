"""Attention weights, the logit lens, norms, steering vectors, and their pictures."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel import Steering
from ggmodel.errors import ConfigError, FormatError, PromptError, Unsupported
from ggmodel.runner import LoadedModel
from ggmodel.workbench import inside
from ggmodel.workbench.heat import heat_map
from tests.documents import ROOT
from tests.workbench.models import STORIES

PROMPT = "Once upon a time, there was a fox"


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, flash_attention="off", kv_type="f32") as loaded:
        yield loaded


def test_attention_weights_give_what_the_layer_attends_to(model: LoadedModel):
    """They are rows of probabilities of the past, and values weighed by them are what the output
    projection of the layer reads."""
    h = model.model.config
    weights = inside.attention_weights(model, PROMPT, 2)
    n = len(inside.token_texts(model, PROMPT))
    assert weights.shape == (h.heads, n, n) and weights.dtype == np.float32
    np.testing.assert_allclose(weights.sum(axis=2), 1, atol=1e-6)
    assert not np.triu(weights, 1).any()
    with model.capture("layers.2.attn.v", "layers.2.attn") as seen:
        model.logits(PROMPT)
    v = seen["layers.2.attn.v"].reshape(n, h.kv_heads, -1)
    mixed = [weights[i] @ v[:, i * h.kv_heads // h.heads] for i in range(h.heads)]
    out = model.modules["layers.2.attn.out"].module
    (weight,) = (model.source.tensors[name] for name in ("blk.2.attn_output.weight",))
    raw = np.frombuffer(model.source.data(weight.name), weight.dtype.numpy or np.uint8)
    matrix = ggmodel.ml.tensor.to_float32(raw, weight.dtype, weight.shape)
    got = np.concatenate(mixed, axis=1) @ matrix.T
    error = ((got - seen["layers.2.attn"]) ** 2).mean() / (got**2).mean()
    assert out is not None and error < 1e-4  # products of quantised weights round activations


def test_attention_weights_need_plain_attention(model: LoadedModel):
    with ggmodel.load(STORIES) as fused, pytest.raises(Unsupported, match='flash_attention="off"'):
        inside.attention_weights(fused, PROMPT, 0)
    with pytest.raises(ConfigError, match="layers 0 to 4"):
        inside.attention_weights(model, PROMPT, 5)


def test_the_logit_lens_ends_with_what_the_model_says(model: LoadedModel):
    grid = inside.logit_lens(model, PROMPT)
    logits = model.logits(PROMPT)
    best = [model.detokenize([int(i)]) for i in logits.argmax(axis=1)]
    assert grid.texts is not None and grid.texts[-1] == best
    assert grid.rows == model.residual and len(grid.columns) == len(logits)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = (chances / chances.sum(axis=1, keepdims=True)).max(axis=1)
    np.testing.assert_allclose(grid.values[-1], chances, rtol=1e-4)
    assert grid.texts[0] != best


def test_norms_are_those_of_the_residual_stream(model: LoadedModel):
    grid = inside.norms(model, PROMPT)
    with model.capture("layers.3") as seen:
        model.logits(PROMPT)
    np.testing.assert_allclose(grid.values[3], np.linalg.norm(seen["layers.3"], axis=1), rtol=1e-6)


def test_a_picture_has_the_texts_and_is_xml():
    values = np.array([[0.0, 1.0], [np.nan, 0.5]], np.float32)
    grid = inside.Grid(["a<b", "c"], [" x\n", "&\x00"], values, [["t", "u"], ["v", "w" * 99]])
    svg = heat_map(grid, 'norms "of" <tokens>')
    root = ET.fromstring(svg)
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a<b", "c", "·x⏎", "&▯", "t", "u", "v", 'norms "of" <tokens>'} <= {*texts}
    fills = [r.get("fill") for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(fills) == 4 and len({*fills}) == 4 and max(map(len, filter(None, texts))) < 30


def test_a_steering_vector_is_the_difference_of_means(model: LoadedModel, tmp_path: Path):
    good, bad = ["The happy dog", "A happy girl"], ["The sad dog"]
    made = inside.steering_vector(model, good, bad)
    assert [*made.directions] == [1, 2, 3, 4]
    with model.capture("layers.3") as seen:
        for prompt in (*good, *bad):
            model.logits(prompt)
    a, b, c = (one["layers.3"][-1] for one in seen.requests)
    np.testing.assert_allclose(made.directions[3], (a + b) / 2 - c, rtol=1e-4, atol=1e-5)
    with pytest.raises(PromptError, match="both kinds"):
        inside.steering_vector(model, good, [])
    inside.save_steering(tmp_path / "a.gguf", made, "llama")
    with ggmodel.open_gguf(tmp_path / "a.gguf") as file:
        assert file.metadata["general.architecture"] == "controlvector"
        assert file.metadata["controlvector.model_hint"] == "llama"
        assert file.metadata["controlvector.layer_count"] == 4
    name, loaded, strength = Steering.parse(f"{tmp_path}/a.gguf:-1.5")
    assert (name, strength) == ("a", -1.5) and [*loaded.directions] == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match="no direction for layer 0"):
        inside.save_steering(tmp_path / "b.gguf", Steering({0: np.ones(4)}), "llama")
    with pytest.raises(FormatError, match="is no direction of a layer"):
        Steering.load(STORIES)
    with pytest.raises(ConfigError, match="finite"):
        Steering({1: np.array([np.nan])})


def test_the_example_finds_the_layer_that_brings_the_colour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    example = runpy.run_path(str(ROOT / "examples" / "patching.py"))
    example["main"](str(tmp_path / "colour.svg"))
    told = capsys.readouterr().out
    assert told.startswith("red: red.\nblue: blue.\n")
    assert "layers.2 brings the colour to the last token, layers.4 most of it" in told
    drawn = ET.parse(tmp_path / "colour.svg").getroot()
    assert any(text.text == "the·picture" for text in drawn.iter())
    assert (ROOT / "docs" / "colour.svg").read_text("utf-8").startswith("<svg ")
