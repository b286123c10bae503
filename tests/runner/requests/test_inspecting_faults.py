"""Patches and steering vectors that are wrong: their own request ends, and says which of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import Steering, in_graph
from ggmodel.errors import ComputeError, ConfigError
from ggmodel.ml import Tensor
from ggmodel.runner import LoadedModel
from tests.runner.requests.test_inspecting import PROMPT, STORIES, wait

WIDTH = 192


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, parallel=3, deterministic=True, context_length=256) as loaded:
        yield loaded


def divides(x: Tensor) -> Tensor:
    raise ZeroDivisionError("no such direction")


def counts(x: Tensor) -> Any:
    return 3


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (lambda rows: None, r"patch of layers\.2 returned no numbers"),
        (lambda rows: rows * 1j, r"patch of layers\.2 returned no numbers"),
        (lambda rows: rows * np.nan, "returned no numbers, or NaN"),
        (lambda rows: rows + np.inf, "returned no numbers, or NaN or infinite"),
        (in_graph(divides), r"patch of layers\.2 raised ZeroDivisionError: no such"),
        (in_graph(lambda x, y: x), r"patch of layers\.2 raised TypeError"),
    ],
)
def test_a_wrong_patch_ends_its_own_request(model: LoadedModel, patch: Any, message: str):
    options: Any = {"max_tokens": 6, "temperature": 0}
    plain = model.generate(PROMPT, **options)
    with model.patch({"layers.2": patch}):
        bad = model.request(PROMPT, **options)
    good = model.request(PROMPT, **options)
    for one in (bad, good):
        one.start()
    assert wait(good).proof.sums == plain.proof.sums  # type: ignore[union-attr]
    with pytest.raises(ComputeError, match=message):
        wait(bad)
    assert model.generate(PROMPT, **options).proof.sums == plain.proof.sums  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("expression", "error", "message"),
    [
        (in_graph(divides), ComputeError, r"captured of layers\.2 raised ZeroDivisionError: no"),
        (
            in_graph(lambda x: x.reshape(1, x.n_elements)),
            ConfigError,
            r"must be F32 \[any width, \d+\], not",
        ),
        (in_graph(lambda x: x.argsort()), ConfigError, r"must be F32 \[any width, \d+\], not"),
        (in_graph(counts), ConfigError, r"must be F32 \[any width, \d+\], not int"),
        (lambda rows: rows, ConfigError, r"must be in_graph\(function\)"),
        (None, ConfigError, r"must be in_graph\(function\)"),
    ],
)
def test_a_wrong_expression_ends_its_own_request(
    model: LoadedModel, expression: Any, error: type[Exception], message: str
):
    plain = model.generate(PROMPT, max_tokens=6, temperature=0)
    with pytest.raises(error, match=message), model.capture({"layers.2": expression}):
        model.generate(PROMPT, max_tokens=6, temperature=0)
    assert model.generate(PROMPT, max_tokens=6, temperature=0).tokens == plain.tokens


def test_a_module_has_one_capture(model: LoadedModel):
    one = in_graph(lambda x: x)
    for wrong in (["layers.1"], {3: one}, 3):
        with pytest.raises(ConfigError, match="no name of a module"), model.capture(wrong):  # type: ignore[arg-type]
            pass
    with model.capture({"layers.*": one}), model.capture({"layers.2": one}) as seen:
        model.generate(PROMPT, max_tokens=1)
    assert "layers.2" in seen
    twice = pytest.raises(ConfigError, match=r"layers\.2 is captured twice")
    with twice, model.capture("layers.2", {"layers.*": one}):
        pass
    with model.capture("layers.2"), model.capture({"layers.2": one}), twice:
        model.generate(PROMPT, max_tokens=1)


def test_a_patch_of_the_head_may_rule_tokens_out(model: LoadedModel):
    first = model.generate(PROMPT, max_tokens=1, temperature=0).tokens[0]

    def without(rows: np.ndarray) -> np.ndarray:
        rows[:, first] = -np.inf
        return rows

    with model.patch({"head": without}):
        assert model.generate(PROMPT, max_tokens=1, temperature=0).tokens[0] != first


@pytest.mark.parametrize(
    "patch",
    [
        *(np.full(WIDTH, bad) for bad in (np.nan, np.inf, -np.inf, 1e39)),
        np.ones(WIDTH) * 1j,
        np.array(["a"] * WIDTH),
    ],
)
def test_numbers_to_add_are_finite(model: LoadedModel, patch: np.ndarray):
    says = pytest.raises(ConfigError, match="an array of numbers to add, none NaN")
    with says, model.patch({"layers.1": patch}):
        pass


@pytest.mark.parametrize("patches", [None, ["layers.1"], "layers.1"])
def test_patches_are_a_mapping(model: LoadedModel, patches: Any):
    with pytest.raises(ConfigError, match="name of a module: patch"), model.patch(patches):
        pass


def test_no_module_is_called_nothing(model: LoadedModel):
    with pytest.raises(ConfigError, match="no module is called ''"), model.capture(""):
        pass


@pytest.mark.parametrize("layer", [-1, "a", 1.5, True])
def test_layers_of_a_direction_are_numbers_from_0(layer: Any):
    with pytest.raises(ConfigError, match="give numbers from 0"):
        Steering({layer: np.ones(WIDTH)})


@pytest.mark.parametrize(
    "direction",
    ["a", ["a"], [[1, 2], [3]], [1j, 2j], [1e39], [-np.inf], [np.nan], [[1.0, 2.0]], [10**400]],
)
def test_directions_are_rows_of_finite_numbers(direction: Any):
    with pytest.raises(ConfigError, match="direction of layer 1 must be a row of finite numbers"):
        Steering({1: direction})


@pytest.mark.parametrize("strength", [np.nan, np.inf, 1e39, 10**400, True, "a"])
def test_strengths_of_vectors_are_numbers_of_float32(model: LoadedModel, strength: Any):
    with pytest.raises(ConfigError, match="steer is"):
        model.generate(PROMPT, max_tokens=1, steer={"mood": strength})


@pytest.mark.parametrize("array", ["text", [1j], np.nan, [[1.0], [1.0, 2.0]], None])
def test_an_expression_computes_with_numbers(array: Any):
    with pytest.raises(ConfigError, match="in_graph computes with finite numbers, not"):
        in_graph(lambda x, y: x + y, array)


def test_a_pattern_leaves_out_modules_that_are_not_computed_by_themselves(model: LoadedModel):
    with model.capture("*") as captured:
        model.logits(PROMPT)
    assert {*captured} == {"embed", "norm", "head"}
    with model.patch({"*": np.zeros(WIDTH)}), pytest.raises(ConfigError, match="head has rows of"):
        model.logits(PROMPT)
    for name in ("rotary", "r*"):
        with model.capture(name), pytest.raises(ConfigError, match="rotary is not computed by"):
            model.logits(PROMPT)
    with model.capture("*", "rotary"), pytest.raises(ConfigError, match="rotary is not computed"):
        model.logits(PROMPT)
