"""BART and Marian: forced first tokens, bias of logits, rows without a source, odd checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import Input
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, Error, PromptTooLong, Unsupported
from ggmodel.model import find
from ggmodel.models.bart.marian import sines
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse, source_of
from tests.convert.folders import write_model
from tests.golden.bart.cases import START
from tests.golden.files import load_golden

OPTIONS: dict[str, Any] = {"kv_type": "f32", "threads": 1, "parallel": 3}
SOURCE = [7, 44, 11, 9]


@pytest.fixture(scope="module", params=["bart/published", "bart/scaled", "marian/published"])
def model(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    with ggmodel.load(source_of(load_golden(*request.param.split("/"))), **OPTIONS) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def bart() -> Iterator[LoadedModel]:
    with ggmodel.load(source_of(load_golden("bart", "published")), **OPTIONS) as loaded:
        yield loaded


def answer(model: LoadedModel, prompt: Any, n: int = 8, **options: Any) -> list[int]:
    return model.generate(prompt, max_tokens=n, temperature=0, **options).tokens


def test_answers_in_a_batch_are_those_alone(model: LoadedModel):
    prompts = [[5], SOURCE, [9] * 30, [9, 9], [2, 80, 60]]
    each = [answer(model, prompt) for prompt in prompts]
    done = model.batch(prompts, max_tokens=8, temperature=0)
    assert [one.tokens for one in done] == each
    assert len({tuple(tokens) for tokens in each}) > 1


def test_an_answer_goes_on_as_the_decoder_alone_does(model: LoadedModel):
    source = model.embeddings(np.array(SOURCE, np.float32), "source")
    tokens = answer(model, SOURCE)
    for n in range(len(tokens)):
        assert model.logits([source, *tokens[:n]])[-1].argmax() == tokens[n]


def test_rows_without_a_source_stay_as_they_are(model: LoadedModel):
    """Beside rows that have one, in the same batches."""
    begin = [Input(START), Input(30), Input(31)]
    alone = model.logits(begin)
    source = model.embeddings(np.array(SOURCE, np.float32), "source")
    both = model.logits([source, 30, 31])
    assert nmse(alone, both[-3:]) > 1e-4
    done = model.batch([begin, SOURCE, begin], max_tokens=6, temperature=0)
    assert done[0].tokens == done[2].tokens == answer(model, begin, 6)
    assert done[1].tokens == answer(model, SOURCE, 6)


def test_a_forced_token_is_no_part_of_an_answer(bart: LoadedModel):
    """It follows the start, as transformers' generate lays it."""
    assert bart.model.config.forced == 0
    logits = bart.logits(SOURCE)
    assert len(logits) == 2 and answer(bart, SOURCE, 1) == [logits[1].argmax()]
    golden = load_golden("bart", "scaled")
    with ggmodel.load(source_of(golden), **OPTIONS) as other:
        assert other.model.config.forced is None and len(other.logits(SOURCE)) == 1


def test_a_forced_token_of_generation_config(tmp_path: Any):
    config = {k: v for k, v in load_golden("bart", "published").config.items() if "forced" not in k}
    config["generation:"] = {"forced_bos_token_id": 5}
    source = from_hf(find("bart"), config, load_golden("bart", "published").weights())
    assert source.metadata["bart.forced_bos_token_id"] == 5


def test_a_bias_of_logits_is_added():
    golden = load_golden("marian", "published")
    weights = golden.weights()
    bias = np.zeros((1, 96), np.float32)
    bias[0, 17] = 100
    found = []
    for changes in ({}, {"final_logits_bias": bias}, {"final_logits_bias": 0 * bias}):
        with ggmodel.load(
            from_hf(find("marian"), golden.config, {**weights, **changes}), **OPTIONS
        ) as loaded:
            found.append(loaded.logits(SOURCE))
    np.testing.assert_allclose(
        found[1] - found[2], np.broadcast_to(bias, found[1].shape), atol=1e-4
    )
    del weights["final_logits_bias"]
    with ggmodel.load(from_hf(find("marian"), golden.config, weights), **OPTIONS) as loaded:
        assert np.array_equal(loaded.logits(SOURCE), found[2])


@pytest.mark.parametrize(
    ("architecture", "case", "prefix"),
    [("bart", "published", "model."), ("marian", "plain", "model."), ("t5", "published", "")],
)
def test_two_tables_of_embeddings_are_refused(architecture: str, case: str, prefix: str):
    """transformers takes a decoder's own, whatever `tie_word_embeddings` says of equal ones."""
    golden = load_golden(architecture, case)
    weights = golden.weights()
    table = weights[f"{prefix}shared.weight"]
    for tied in (True, False):
        config = golden.config | {"tie_word_embeddings": tied}
        for side in ("encoder", "decoder"):
            name = f"{prefix}{side}.embed_tokens.weight"
            same = from_hf(find(architecture), config, {**weights, name: table.copy()})
            assert same.tensors.keys() == source_of(golden).tensors.keys()
            with pytest.raises(ConfigError, match=f"{name} are two tables of embeddings"):
                from_hf(find(architecture), config, {**weights, name: table + 1})


def test_stored_sines_are_left_out():
    """Older versions of transformers saved them."""
    golden = load_golden("marian", "published")
    table = sines(np.arange(64), 64)
    stored = {f"model.{side}.embed_positions.weight": table for side in ("encoder", "decoder")}
    found = from_hf(find("marian"), golden.config, {**golden.weights(), **stored})
    assert found.tensors.keys() == source_of(golden).tensors.keys()


def test_sines_and_cosines():
    found = sines(np.array([0, 3]), 4)
    np.testing.assert_allclose(found[0], [0, 0, 1, 1])
    np.testing.assert_allclose(found[1], [np.sin(3), np.sin(0.03), np.cos(3), np.cos(0.03)], 1e-6)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("bart", {"decoder_ffn_dim": 48}),
        ("marian", {"share_encoder_decoder_embeddings": False}),
        ("marian", {"decoder_vocab_size": 97}),
    ],
)
def test_other_checkpoints_are_refused_by_their_key(
    family: str, changes: dict[str, Any], tmp_path: Path
):
    golden = load_golden(family, "published")
    write_model(tmp_path, {**golden.config, **changes}, golden.weights())
    with pytest.raises(Error, match=next(iter(changes))):
        ggmodel.load(tmp_path, **OPTIONS)


def test_a_text_may_have_as_many_tokens_as_there_are_positions(bart: LoadedModel):
    assert bart.context_length == 64
    assert len(answer(bart, [7] * 64, 2)) == 2
    with pytest.raises(PromptTooLong, match="the prompt has 65 tokens, and the encoder reads 64"):
        answer(bart, [7] * 65)
    with pytest.raises(Unsupported, match="has nothing to shift"):
        answer(bart, SOURCE, context_shift=True)
