"""Positions that a model declares: what it is asked, and what it must answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from ggmodel import Input
from ggmodel.errors import ArchitectureError, PromptError, TensorError
from ggmodel.model import Model
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.inputs import Histories
from ggmodel.runner.engine.step import Chunk
from tests.models.forced import answers
from tests.models.test_many_users import SUBJECTS, TEXT, picture

ROWS = 9


@pytest.fixture
def model() -> Iterator[LoadedModel]:
    with SUBJECTS["strider"].load(parallel=2, batch_size=4) as loaded:
        yield loaded


@pytest.fixture
def asked(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """For each question to the model: inputs, images among them, and inputs before them."""
    found: list[tuple[int, int, int]] = []
    kind: Any = type(model.model)
    positions = kind.positions

    def noted(self: Model, inputs: Sequence[Input], before: np.ndarray) -> np.ndarray:
        assert not before.flags.writeable
        images = sum(one.multimodal is not None for one in inputs)
        found.append((len(inputs), images, len(before)))
        return positions(self, inputs, before)

    monkeypatch.setattr(kind, "positions", noted)
    return found


def test_an_image_is_given_whole(model: LoadedModel, asked: list[tuple[int, int, int]]):
    answers(model, [([3, 4, picture(1, (6, 6)), *TEXT[:2]], [])])
    # Batches of 4: of the 9 rows that begin at place 3, 1, 4 and 4 are in the first three.
    assert asked == [(3 + ROWS, 1, 0), (ROWS, 1, 3), (ROWS, 1, 3), (3, 0, 3 + ROWS)]


def test_text_is_asked_for_where_it_begins(model: LoadedModel, asked: list[tuple[int, int, int]]):
    answers(model, [(TEXT, [5, 6])])
    assert asked == [(4, 0, 0), (4, 0, 4), (1, 0, 8), (1, 0, 9)]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (lambda n: np.zeros((n, 3), np.int32), r"\[2, 3\] of int32 for 2 inputs"),
        (lambda n: np.zeros((n, 4)), r"\[2, 4\] of float64 for 2 inputs"),
        (lambda n: np.zeros((n + 1, 4), np.int32), r"\[3, 4\] of int32 for 2 inputs"),
    ],
)
def test_another_answer_names_the_line(
    model: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[int], np.ndarray],
    shown: str,
):
    kind: Any = type(model.model)
    monkeypatch.setattr(kind, "positions", lambda self, inputs, before: answer(len(inputs)))
    with pytest.raises(TensorError, match=rf"strider.py:\d+: Strider.positions returned {shown}"):
        model.generate([3, 4], max_tokens=1)
    with pytest.raises(TensorError, match=r"must return int32 \[2, 4\]"):
        model.logits([3, 4])


def test_an_error_of_the_model_is_one_users(model: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    kind: Any = type(model.model)
    positions = kind.positions

    def fails(self: Model, inputs: Sequence[Input], before: np.ndarray) -> np.ndarray:
        if any(one.multimodal is not None for one in inputs):
            raise ZeroDivisionError("no rows")
        return positions(self, inputs, before)

    want = model.generate(TEXT, max_tokens=12, temperature=0).tokens
    monkeypatch.setattr(kind, "positions", fails)
    running = model.stream(TEXT, max_tokens=12, temperature=0)
    tokens = [next(running).token]
    with pytest.raises(ArchitectureError, match=r"Strider.positions: ZeroDivisionError: no rows"):
        model.generate([3, picture(1, (6, 6)), 4], max_tokens=2)
    assert tokens + [piece.token for piece in running] == want


def test_models_without_positions_of_their_own_keep_none():
    with SUBJECTS["gemma3"].load() as plain:
        assert plain.engine.graphs.histories is None and plain.engine.planner.histories is None
        assert not type(plain.model).own_components()


def test_guesses_and_what_follows_them(model: LoadedModel):
    """Prompt lookup computes tokens ahead, and takes wrong ones back."""
    prompt = [picture(1, (6, 6)), *TEXT, *TEXT, *TEXT]
    plain = model.generate(prompt, max_tokens=40, temperature=0)
    ahead = model.generate(prompt, max_tokens=40, temperature=0, prompt_lookup=True)
    assert ahead.tokens == plain.tokens


def test_texts_are_embedded_at_their_places(model: LoadedModel):
    texts = [TEXT, TEXT[:3], [*TEXT, *TEXT]]
    together = model.embed(texts, pooling="last")
    for text, row in zip(texts, together, strict=True):
        np.testing.assert_allclose(model.embed([text], pooling="last")[0], row, atol=1e-5)


def test_a_history_grows_and_is_copied():
    with SUBJECTS["strider"].load(parallel=2) as model:
        histories = Histories.of(model.model, model.engine.inputs)
        assert histories is not None
        at = np.arange(700, dtype=np.int32)
        histories.components(at % 60, at, at * 0)
        histories.copy(0, 1, 600)
        (row,) = histories.components(at[:1], at[600:601], at[:1] + 1).T
        assert row.tolist() == [600] * 4


def test_what_is_placed_ahead_may_fail(model: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    """The batch itself is placed again, and fails alone."""

    def refuse(*_: Any) -> np.ndarray:
        raise PromptError("no grid")

    model.generate(TEXT, max_tokens=2)
    steps = model.engine.steps
    monkeypatch.setattr(type(model.model), "positions", refuse)
    slot = model.engine.sequences.all[0]
    chunk = Chunk(slot, len(slot.tokens), [1], True)
    model.engine.call(lambda: steps.prepare([chunk]))
    with pytest.raises(PromptError, match="no grid"):
        model.engine.call(lambda: steps.place([chunk]))
