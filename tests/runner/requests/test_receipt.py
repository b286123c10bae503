"""Receipts of answers, and their bits computed again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel.errors import ConfigError, Unsupported
from ggmodel.runner import LoadedModel, Receipt, Sampler
from ggmodel.workbench.golden import source_of
from tests.golden.text import golden_of

GOLDEN = "llama/plain_gqa"


def load(**options: Any) -> LoadedModel:
    given: dict[str, Any] = {"deterministic": True, "context_length": 64, **options}
    return ggmodel.load(source_of(golden_of(GOLDEN)), **given)


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    with load(parallel=3) as model:
        yield model


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return golden_of(GOLDEN).prompt.tolist()[:12]


def receipt_of(model: LoadedModel, prompt: list[int], **options: Any) -> Receipt:
    receipt = model.generate(prompt, max_tokens=10, **options).receipt
    assert receipt is not None
    return receipt


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"seed": 3}, {"seed": 3, "prompt_lookup": True}, {}],
    ids=["greedy", "drawn", "speculative", "without a seed"],
)
def test_a_replay_gives_the_same_bits(
    model: LoadedModel, prompt: list[int], tmp_path: Path, options: dict[str, Any]
):
    receipt = receipt_of(model, prompt, **options)
    assert receipt.prompt == prompt
    assert len(receipt.tokens) == len(receipt.sums) == 10
    receipt.save(tmp_path / "receipt.json")
    read = Receipt.read(tmp_path / "receipt.json")
    assert read == receipt
    with load(threads=1, batch_size=3) as other:
        outcome = other.replay(read)
    assert outcome.same
    assert outcome.differences == ()


def test_a_shifted_context_is_replayed(model: LoadedModel, prompt: list[int]):
    many = {"context_shift": True, "seed": 1, "num_keep": 2}
    receipt = model.batch([prompt] * 3, max_tokens=80, **many)[1].receipt
    assert receipt is not None
    with load() as other:
        assert other.replay(receipt).same


def test_what_differs_is_named(model: LoadedModel, prompt: list[int]):
    receipt = receipt_of(model, prompt, seed=3)
    tokens = [*receipt.tokens]
    tokens[4] = (tokens[4] + 1) % 50
    other = replace(receipt, tokens=tokens, model="0" * 64, library={**receipt.library, "c": "x"})
    outcome = model.replay(other)
    assert not outcome.same
    assert outcome.first == 5, "the logits behind the changed token"
    assert outcome.drawn == 4, "the token that was changed"
    assert [name for name, *_ in outcome.differences] == ["model", "c"]


def test_samplers_of_others_are_replayed_by_their_tokens(model: LoadedModel, prompt: list[int]):
    class Least(Sampler):
        def draw(self, logits: Any, random: Any) -> int:
            return int(logits.argmin())

    receipt = receipt_of(model, prompt, sampler=Least())
    assert model.replay(receipt).same


def test_the_normal_mode_has_none(prompt: list[int], model: LoadedModel):
    receipt = receipt_of(model, prompt)
    with load(deterministic=False) as normal:
        assert normal.generate(prompt, max_tokens=2).receipt is None
        with pytest.raises(Unsupported, match="deterministic=True"):
            normal.replay(receipt)


def test_another_cache_is_refused(model: LoadedModel, prompt: list[int]):
    receipt = receipt_of(model, prompt)
    with load(kv_type="f32") as other, pytest.raises(ConfigError, match="kv_type is 'f16'"):
        other.replay(receipt)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 1"),
        ({"more": 1}, "no receipt of this version"),
        ({"prompt": [-1]}, "no list of token ids"),
        ({"sums": []}, "one sum a token"),
        ({"library": 3}, "library is no object"),
    ],
)
def test_damaged_receipts(
    model: LoadedModel, prompt: list[int], tmp_path: Path, change: dict[str, Any], message: str
):
    path = tmp_path / "receipt.json"
    receipt_of(model, prompt).save(path)
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | change))
    with pytest.raises(ConfigError, match=message):
        Receipt.read(path)


def test_no_receipt_at_all(tmp_path: Path):
    path = tmp_path / "receipt.json"
    with pytest.raises(ConfigError, match="is no receipt"):
        Receipt.read(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="is no receipt"):
        Receipt.read(path)
