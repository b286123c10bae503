"""Types by measured loss: the choice against an exhaustive search, files against their recipes."""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert.quantize import decode, encode
from ggmodel.convert.quantize import quantize as by_type
from ggmodel.errors import ConfigError, FormatError, PromptError, WriteError
from ggmodel.gguf_file import DType, MemorySource, TensorSource, open_gguf
from ggmodel.workbench.compare import compare
from ggmodel.workbench.mixture import (
    Mixture,
    Option,
    _errors,
    _rounded,
    hull,
    knapsack,
    probe_of,
    quantize,
)
from tests.workbench.models import ROOT, STORIES

# Stories of the model's own grammar.
TEXT = (ROOT / "tests" / "convert" / "stories.txt").read_text("utf-8")[:1500]


def bits(source: TensorSource) -> float:
    tensors = source.tensors.values()
    return 8 * sum(t.nbytes for t in tensors) / sum(t.n_elements for t in tensors)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture") / "q4_K_M.gguf"
    with open_gguf(STORIES) as source:
        by_type(source, path, "q4_K_M", allow_requantize=True)
    return path


@pytest.fixture(scope="module")
def made(plain: Path) -> Iterator[tuple[Path, Mixture]]:
    """A file as large as Q4_K_M's."""
    path = plain.with_name("mixture.gguf")
    with (
        open_gguf(STORIES) as source,
        open_gguf(plain) as other,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("ggmodel.workbench.mixture._CHUNKS", 1)
        yield path, quantize(source, path, TEXT, bits(other), allow_requantize=True)


def test_types_and_size(plain: Path, made: tuple[Path, Mixture]):
    path, mixture = made
    with open_gguf(path) as source, open_gguf(plain) as other:
        assert bits(source) <= bits(other) < bits(source) + 0.1
        assert {n: t.dtype for n, t in source.tensors.items()} == dict(mixture.types)
        assert source.metadata["ggmodel.mixture.target_bits"] == pytest.approx(bits(other))
        assert "general.file_type" not in source.metadata
    assert {t for n, t in mixture.types.items() if "norm" in n} == {DType.F32}
    assert mixture.losses.keys() == {n for n, t in mixture.types.items() if t is not DType.F32}


_LADDER = [DType.Q3_K, DType.Q4_K, DType.Q5_0, DType.Q6_K, DType.Q8_0]
_NO_K = [DType[n] for n in "Q4_0 IQ4_NL Q4_1 Q5_0 Q5_1 Q8_0".split()]  # of rows of 640 numbers


@pytest.mark.parametrize(
    ("before", "ladder"),
    [
        (DType.Q8_0, _LADDER),
        (DType.Q5_0, _LADDER),
        (DType.Q4_K, _LADDER),
        (DType.Q4_0, _NO_K),
    ],
)
def test_no_probe_has_the_type_that_the_numbers_had(before: DType, ladder: list[DType]):
    """Its error is almost none, and says nothing of others; it may be the smallest of all."""
    values = np.random.default_rng(3).normal(0, 0.05, (64, 256)).astype(np.float32)
    target = 8 * before.type_size / before.block_size
    assert probe_of(dict(_errors(values, ladder, "a", None)), target) is before
    rounded = _rounded(values, before, "a", None).astype(np.float16).astype(np.float32)
    errors = dict(_errors(rounded, ladder, "a", None))
    probe = probe_of(errors, target)
    assert probe is not before and errors[probe] > 10 * errors[before]


@pytest.mark.slow
def test_less_is_lost_at_the_same_size(plain: Path, monkeypatch: pytest.MonkeyPatch):
    """Measured on stories of the training, judged by held-out ones: 2,794 tokens."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "training")
    grammar = importlib.import_module("story_grammar")
    text = "\n".join(grammar.story(seed) for seed in grammar.TRAINING_SEEDS[:60])
    held_out = "\n".join(grammar.story(seed) for seed in grammar.HELD_OUT_SEEDS[:24])
    path = plain.with_name("smaller.gguf")
    with open_gguf(STORIES) as source, open_gguf(plain) as other:
        quantize(source, path, text, bits(other), allow_requantize=True)
    how: Any = {"context_length": 256, "threads": 1, "gpu_layers": 0}
    losses = []
    for file in (path, plain):
        with ggmodel.load(STORIES, **how) as original, ggmodel.load(file, **how) as model:
            *_, result = compare(original, model, held_out)
        losses.append(result.divergences.mean())
    assert losses[0] <= 0.85 * losses[1]


def test_the_recipe_gives_the_same_bytes(made: tuple[Path, Mixture], tmp_path: Path):
    path, mixture = made
    again = tmp_path / "again.gguf"
    with open_gguf(STORIES) as source, open_gguf(path) as recipe:
        found = Mixture.read(recipe)
        assert found.types == mixture.types and found.text == mixture.text
        assert found.losses == pytest.approx(mixture.losses, rel=1e-3)
        quantize(source, again, TEXT, recipe=recipe, allow_requantize=True)
    assert again.read_bytes() == path.read_bytes()


def test_a_recipe_that_does_not_suit(made: tuple[Path, Mixture], model_file: Path, tmp_path: Path):
    with open_gguf(STORIES) as source, open_gguf(made[0]) as recipe:
        with pytest.raises(ConfigError, match="another text"):
            quantize(source, tmp_path / "a.gguf", "a", recipe=recipe, allow_requantize=True)
        with pytest.raises(FormatError, match="no recipe of types"):
            quantize(source, tmp_path / "a.gguf", TEXT, recipe=source)
        with pytest.raises(ConfigError, match="one of them"):
            quantize(source, tmp_path / "a.gguf", TEXT, 5.0, recipe=recipe)
        with open_gguf(model_file) as other, pytest.raises(ConfigError, match="another model"):
            quantize(other, tmp_path / "a.gguf", TEXT, recipe=recipe)
    assert not list(tmp_path.iterdir())


def test_a_recipe_that_is_damaged():
    whole = Mixture({"a": DType.Q8_0}, {"a": 0.5}, 5.0, "digest")
    assert Mixture.read(MemorySource(whole.metadata(), {})) == whole
    for types in ("{", "[]", "3", '{"a": "Q9_Z"}', '{"a": 3}', "[" * 100_000):
        source = MemorySource({**whole.metadata(), "ggmodel.mixture.types": types}, {})
        with pytest.raises(FormatError, match="no recipe of types"):
            Mixture.read(source)


@pytest.fixture(scope="module")
def model_file() -> Path:
    return ROOT / "examples" / "assets" / "tones.gguf"


def test_what_cannot_be(tmp_path: Path):
    out = tmp_path / "a.gguf"
    with open_gguf(STORIES) as source:
        with pytest.raises(ConfigError, match=r"at least \d\.\d\d bits a weight"):
            quantize(source, out, TEXT, 1.5, allow_requantize=True)
        with pytest.raises(ConfigError, match="is Q8_0 already"):
            quantize(source, out, TEXT, 5.0)
        with pytest.raises(PromptError, match="less than a chunk of 256"):
            quantize(source, out, "Once upon a time", 5.0, allow_requantize=True)
        with pytest.raises(WriteError, match="no/folder"):
            quantize(source, tmp_path / "no/folder", TEXT, 5.0)
    assert not list(tmp_path.iterdir())


def choices(seed: int) -> dict[str, list[Option]]:
    """Options as they are: each byte saves less than the one before, but for noise."""
    dice = random.Random(seed)
    options = {}
    for name in "abcd":
        scale, size = dice.uniform(0.1, 10), dice.choice((1, 4, 16))
        options[name] = [
            Option(DType.Q8_0, size * b, scale * 4.0**-b * dice.uniform(0.7, 1.4))
            for b in range(1, 7)
        ]
    return options


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_nearly_the_best_of_all(seed: int):
    """The relaxed problem's best is a bound of every choice: a greedy one is off by less than one
    step of one tensor."""
    options = choices(seed)
    smallest = sum(min(o.nbytes for o in one) for one in options.values())
    budget = smallest + 5 * seed
    picked = knapsack(options, budget)
    assert sum(o.nbytes for o in picked.values()) <= budget
    best = min(
        sum(o.loss for o in whole)
        for whole in itertools.product(*options.values())
        if sum(o.nbytes for o in whole) <= budget
    )
    steps = [a.loss - b.loss for one in options.values() for a, b in itertools.pairwise(hull(one))]
    assert best <= sum(o.loss for o in picked.values()) <= best + max(steps)


def test_the_hull_leaves_out_what_is_worse():
    a, b, c, d = (Option(DType.Q8_0, n, loss) for n, loss in ((1, 8), (2, 7), (3, 2), (4, 3)))
    assert hull([d, b, a, c]) == [a, c]


def test_errors_are_those_of_products():
    """The estimate of a type's error is the mean square of what products lose, for inputs that are
    independent: within a tenth, at 4,096 inputs."""
    from ggmodel.workbench.mixture import _errors

    dice = np.random.default_rng(1)
    values = dice.standard_normal((32, 256), np.float32)
    scales = np.exp(dice.standard_normal(256)).astype(np.float32)
    inputs = (dice.standard_normal((4096, 256)) * scales).astype(np.float32)
    weights = np.ascontiguousarray(np.square(inputs).mean(0)[None])
    for dtype, error in _errors(values, [DType.Q4_K, DType.IQ4_XS], "w", weights):
        rounded = decode(encode(values, dtype, "w", weights), dtype, values.size)
        lost = inputs @ (rounded.reshape(values.shape) - values).T
        assert error == pytest.approx(np.square(lost).mean(0).sum(), rel=0.1)
