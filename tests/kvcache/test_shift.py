"""Positions that move: a model goes on as if the removed text had never been there.

In a model of one layer keys and values depend on token and position alone: removing from the middle
and rotating what stays is then the same as computing the shorter text from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import Error
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench.golden import nmse
from tests.golden.files import load_golden

# Keys are rotated twice in float32; the other error is that of any two float32 runs. In F16 each
# rotation is another rounding to 11 bits.
BOUND = {"f32": 1e-9, "f16": 1e-5}


CASES = ["plain_gqa", "llama3_rope", "linear_rope", "yarn", "longrope"]
OTHERS: dict[str, dict[str, Any]] = {  # what of a config is changed
    "mistral/no_window": {},
    "qwen2/yarn": {},
    "qwen3/plain": {},
    "phi3/partial_plain": {},
    "olmo2/gqa": {},
    "cohere2/published": {"sliding_window": 256},  # a local layer, which rotates
    "cohere2/layer_types": {"layer_types": ["full_attention"]},  # one that does not
    "command_r/plus": {},
    "gemma3/every_3rd": {},  # a local layer
    "gemma3/linear_rope": {"sliding_window_pattern": 1},  # a global one
    "llama4/untuned": {},  # a chunk of 64
    "gpt_oss/released": {"sliding_window": 256},
}


def one_layer(name: str) -> MemorySource:
    architecture, case = name.split("/")
    golden = load_golden(architecture, case)
    weights = {
        name: values
        for name, values in golden.weights().items()
        if ".layers." not in name or ".layers.0." in name
    }
    config = {**golden.config, "num_hidden_layers": 1, **OTHERS.get(name, {})}
    return from_hf(find(architecture.replace("_", "-")), config, weights)


@pytest.fixture(scope="module", params=[*(f"llama/{case}" for case in CASES), *OTHERS])
def source(request: pytest.FixtureRequest) -> MemorySource:
    return one_layer(request.param)


@pytest.fixture(params=["f32-on", "f32-off", "f16-on", "f16-off"])
def model(source: MemorySource, request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    kv_type, flash = request.param.split("-")
    with ggmodel.load(
        source,
        kv_type=kv_type,
        flash_attention=flash,
        context_length=128,
        batch_size=16,
        parallel=2,
        threads=1,
    ) as loaded:
        yield loaded


def bound(model: LoadedModel) -> float:
    return BOUND[model.engine.kv_type.name.lower()]


TEXT = np.random.default_rng(5).integers(3, 60, 40).astype(np.int32)
NEXT = np.array([7, 23, 11], np.int32)


def continued(model: LoadedModel, sequence: int, start: int) -> np.ndarray:
    return np.stack(
        [Scoring(model.engine).extend(sequence, NEXT[i : i + 1], start + i) for i in range(3)]
    )


def fresh(model: LoadedModel, text: np.ndarray) -> np.ndarray:
    with Scoring(model.engine).sequence() as sequence:
        Scoring(model.engine).extend(sequence, text, 0)
        return continued(model, sequence, len(text))


@pytest.mark.parametrize(("begin", "end"), [(10, 25), (0, 8), (39, 40), (1, 39), (16, 32)])
def test_removal_equals_recomputation(model: LoadedModel, begin: int, end: int):
    with Scoring(model.engine).sequence() as sequence:
        Scoring(model.engine).extend(sequence, TEXT, 0)
        model.engine.cache.remove(sequence, begin, end)
        left = np.concatenate([TEXT[:begin], TEXT[end:]])
        assert model.engine.cache.length(sequence) == len(left)
        got = continued(model, sequence, len(left))
    assert nmse(got, fresh(model, left)) < bound(model)
    # The bound tells right from wrong: unmoved keys are far away.
    if begin and end < 40:
        assert nmse(fresh(model, TEXT)[:1], got[:1]) > 100 * bound(model)


def test_shifting_again_and_again(model: LoadedModel):
    with Scoring(model.engine).sequence() as sequence:
        Scoring(model.engine).extend(sequence, TEXT, 0)
        text = TEXT
        for _ in range(6):
            model.engine.cache.remove(sequence, 4, 8)
            text = np.concatenate([text[:4], text[8:]])
            more = TEXT[:3]
            Scoring(model.engine).extend(sequence, more, len(text))  # into the freed cells
            text = np.concatenate([text, more])
        got = continued(model, sequence, len(text))
    assert nmse(got, fresh(model, text)) < 6 * bound(model)


def test_a_shift_leaves_other_sequences_alone(model: LoadedModel):
    engine = model.engine
    with Scoring(engine).sequence() as one, Scoring(engine).sequence() as two:
        for lo in range(0, 40, 10):  # cells of both lie among each other
            Scoring(engine).extend(one, TEXT[lo : lo + 10], lo)
            Scoring(engine).extend(two, TEXT[::-1][lo : lo + 10], lo)
        engine.cache.remove(one, 5, 20)
        got = continued(model, two, 40)
    assert nmse(got, fresh(model, TEXT[::-1].copy())) < bound(model)


def test_a_copied_prefix_diverges(model: LoadedModel):
    engine = model.engine
    other = TEXT[::-1].copy()
    with Scoring(engine).sequence() as one, Scoring(engine).sequence() as two:
        Scoring(engine).extend(one, TEXT, 0)
        engine.cache.copy_prefix(one, two, 20)
        Scoring(engine).extend(two, other[20:30], 20)
        got = continued(model, two, 30), continued(model, one, 40)
    want = fresh(model, np.concatenate([TEXT[:20], other[20:30]])), fresh(model, TEXT)
    for a, b in zip(got, want, strict=True):
        assert nmse(a, b) < bound(model)


def test_after_a_refused_shift_the_sequence_starts_anew(model: LoadedModel):
    engine = model.engine
    with Scoring(engine).sequence() as one, Scoring(engine).sequence() as two:
        Scoring(engine).extend(one, TEXT, 0)
        engine.cache.copy_prefix(one, two, 40)
        with pytest.raises(Error, match="shares"):
            engine.cache.remove(two, 4, 8)
        engine.cache.remove(two, 0, None)
        left = np.concatenate([TEXT[:4], TEXT[8:]])
        Scoring(engine).extend(two, left, 0)
        got = continued(model, two, len(left)), continued(model, one, 40)
    for a, b in zip(got, (fresh(model, left), fresh(model, TEXT)), strict=True):
        assert nmse(a, b) < bound(model)


@pytest.mark.parametrize("flash", ["on", "off"])
def test_removal_at_the_end_equals_recomputation_at_any_depth(flash: str):
    golden = load_golden("llama", "tied")  # three layers
    source = from_hf(find("llama"), golden.config, golden.weights())
    with ggmodel.load(source, kv_type="f32", flash_attention=flash, parallel=2, threads=1) as model:
        with Scoring(model.engine).sequence() as sequence:
            Scoring(model.engine).extend(sequence, TEXT, 0)
            model.engine.cache.remove(sequence, 17, None)
            got = continued(model, sequence, 17)
        assert nmse(got, fresh(model, TEXT[:17])) < BOUND["f32"]
