"""Prefixes in the host's memory: conversations that take turns in fewer slots."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ConfigError, KvCacheFull
from ggmodel.gguf_file import MemorySource
from ggmodel.kvcache import CausalCache
from ggmodel.model.cache import Saved
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.saved import SavedPrefix, SavedPrefixes
from ggmodel.workbench.golden import source_of
from tests.golden.text import golden_of
from tests.runner.engine.alike import nothing_is_in_use, slots_are_free

LENGTH, TURNS = 40, 3


def prefix(*tokens: int, nbytes: int = 100) -> SavedPrefix:
    state = Saved(len(tokens), [[np.zeros(nbytes - 8 * len(tokens), np.uint8)]])
    return SavedPrefix(list(tokens), state, None, len(tokens))


def conversations(model: LoadedModel, count: int, vocabulary: int) -> list[list[Any]]:
    """The completions of each turn of conversations that take turns."""
    chance = random.Random(1)
    texts = [[chance.randrange(vocabulary) for _ in range(LENGTH)] for _ in range(count)]
    answers: list[list[Any]] = [[] for _ in texts]
    for _ in range(TURNS):
        for i, text in enumerate(texts):
            answer = model.generate(text, max_tokens=4, temperature=0)
            text += [*answer.tokens, 1, 2]
            answers[i].append(answer)
    return answers


@pytest.fixture
def saving(source: MemorySource) -> Iterator[LoadedModel]:
    with ggmodel.load(source, context_length=128, parallel=2, cache_ram=1) as model:
        model.engine.sequences.saved.least = 1
        yield model


@pytest.mark.parametrize("name", ["llama/plain_gqa", "mistral/window", "qwen2/layer_types"])
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_a_conversation_goes_on_from_its_copy(name: str, kv_type: str):
    golden = golden_of(name)
    options: dict[str, Any] = {"context_length": 96, "kv_type": kv_type, "deterministic": True}
    with (
        ggmodel.load(source_of(golden), parallel=4, **options) as every,
        ggmodel.load(source_of(golden), parallel=1, cache_ram=8, **options) as model,
    ):
        model.engine.sequences.saved.least = 1
        want = conversations(every, 4, golden.config["vocab_size"])
        for mine, theirs in zip(
            conversations(model, 4, golden.config["vocab_size"]), want, strict=True
        ):
            assert [one.tokens for one in mine] == [one.tokens for one in theirs]
            for then, now in itertools.pairwise(mine):
                assert now.usage.reused_tokens >= then.usage.prompt_tokens
        slots_are_free(model)


@pytest.mark.parametrize("name", ["mamba2/published", "qwen35/published", "jamba/published"])
def test_states_are_saved(name: str):
    golden = golden_of(name)
    options: dict[str, Any] = {"context_length": 96, "deterministic": True, "parallel": 1}
    with (
        ggmodel.load(source_of(golden), **options) as forgetting,
        ggmodel.load(source_of(golden), cache_ram=8, **options) as model,
    ):
        model.engine.sequences.saved.least = 1
        want = conversations(forgetting, 3, golden.config["vocab_size"])
        got = conversations(model, 3, golden.config["vocab_size"])
        assert [[one.tokens for one in each] for each in got] == [
            [one.tokens for one in each] for each in want
        ]
        assert all(one.usage.reused_tokens >= LENGTH for each in got for one in each[1:])
        assert not any(one.usage.reused_tokens for each in want for one in each)


def test_no_more_memory_than_said(saving: LoadedModel):
    saved = saving.engine.sequences.saved
    conversations(saving, 3, 50)
    held = list(saved)
    saved.limit = held[0].nbytes + held[1].nbytes
    conversations(saving, 9, 40)
    assert 0 < saved.nbytes <= saved.limit
    assert saved.nbytes == sum(one.nbytes for one in saved)
    nothing_is_in_use(saving)


def test_what_no_longer_fits_is_computed(saving: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    want = conversations(saving, 4, 50)

    def full(cache: CausalCache, sequence: int, saved: Any) -> None:
        cache.remove(sequence, 0, None)
        raise KvCacheFull("no room")

    monkeypatch.setattr(CausalCache, "restore", full)
    got = conversations(saving, 4, 50)
    assert [[one.tokens for one in each] for each in got] == [
        [one.tokens for one in each] for each in want
    ]
    nothing_is_in_use(saving)


def test_what_a_patch_has_changed_serves_that_patch_alone(saving: LoadedModel):
    prompt = [n % 50 for n in range(3, 60)]
    plain = saving.generate(prompt, max_tokens=2, temperature=0)
    with saving.capture("layers.0") as seen:
        saving.logits(prompt)
    change = np.linspace(-1, 1, seen["layers.0"].shape[-1], dtype=np.float32)
    with saving.patch({"layers.0": change}):
        patched = saving.generate(prompt, max_tokens=2, temperature=0)
        assert patched.usage.reused_tokens == 0
    conversations(saving, 4, 50)
    again = saving.generate(prompt, max_tokens=2, temperature=0)
    assert again.tokens == plain.tokens and again.usage.reused_tokens == len(prompt) - 1
    with saving.patch({"layers.0": change}):
        again = saving.generate(prompt, max_tokens=2, temperature=0)
        assert again.tokens == patched.tokens and again.usage.reused_tokens == len(prompt) - 1


def test_nothing_is_saved_unless_asked_for(source: MemorySource):
    with ggmodel.load(source, context_length=128) as model:
        conversations(model, 3, 50)
        assert not list(model.engine.sequences.saved)


def test_a_forgotten_beginning_is_not_saved(saving: LoadedModel):
    saving.generate([5] * 40, max_tokens=120, context_shift=True, temperature=0)
    shifted = [one for one in saving.engine.sequences.all if one.exact < len(one.tokens)]
    conversations(saving, 4, 50)
    assert shifted
    assert all(one.tokens[:40] != [5] * 40 for one in saving.engine.sequences.saved)


def test_longer_ones_take_the_place_of_those_that_they_go_on_from():
    saved = SavedPrefixes(1000, least=2)
    saved.add(prefix(1, 2, 3))
    saved.add(prefix(1, 2, 3, 4, 5))
    saved.add(prefix(1, 2, 9, 9))
    assert [one.tokens for one in saved] == [[1, 2, 3, 4, 5], [1, 2, 9, 9]]
    assert saved.nbytes == 200
    assert not saved.wants([1, 2, 3, 4], 0)
    assert not saved.wants([7, 8, 9], 2)  # one token would be lost
    assert saved.wants([7, 8, 9], 1)


def test_the_longest_is_found_if_it_pays():
    saved = SavedPrefixes(1000, least=2)
    for one in ((1, 2, 3), (1, 2, 9, 9), (4, 5, 6)):
        saved.add(prefix(*one))
    found = saved.find([1, 2, 9, 9, 9], 0)
    assert found is not None and found.tokens == [1, 2, 9, 9]
    assert saved.find([1, 2, 9, 9, 9], 3) is None  # one more than is held
    assert saved.find([7], 0) is None


def test_the_one_used_longest_ago_is_dropped():
    saved = SavedPrefixes(200, least=1)
    first, second, third = (prefix(n, nbytes=100) for n in range(3))
    saved.add(first)
    saved.add(second)
    assert saved.find([0, 7], 0) is first
    saved.add(third)
    assert list(saved) == [first, third]
    saved.add(prefix(9, nbytes=201))
    assert list(saved) == [first, third]


@pytest.mark.parametrize("given", [-1, 1.5, "8"])
def test_no_number_of_mib(source: MemorySource, given: Any):
    with pytest.raises(ConfigError, match="cache_ram"):
        ggmodel.load(source, cache_ram=given)


def test_none_is_a_share_of_the_free_memory(source: MemorySource):
    with ggmodel.load(source, cache_ram=None) as model:
        assert 0 < model.engine.sequences.saved.limit <= 8192 << 20


def test_rows_of_a_state_are_read_and_written(source: MemorySource):
    with ggmodel.load(source, context_length=64, cache_ram=1) as model:
        cache: Any = model.engine.cache
        model.generate([1, 2, 3], max_tokens=1)
        keys = next(iter(cache.stored.keys.values()))
        rows = np.array([2, 0, 1])
        before = model.backend.read_rows(keys, rows)
        model.backend.write_rows(keys, rows, before[::-1])
        np.testing.assert_array_equal(model.backend.read_rows(keys, rows), before[::-1])
        whole = model.backend.read(keys).view(np.uint8).reshape(-1, before.shape[1])
        np.testing.assert_array_equal(whole[rows], before[::-1])
