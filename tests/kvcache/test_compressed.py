"""Compressed layers give what the whole text gives in one batch, whatever their caches went
through. The model is a golden's, which equals transformers; a rate of 3 and of 10 positions."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggmodel
from ggmodel import DType
from ggmodel.errors import ConfigError, Error, Unsupported
from ggmodel.kvcache import Cache, Compressed
from ggmodel.kvcache.compressed import CompressedCache, joined
from ggmodel.kvcache.order import Order, by_position
from ggmodel.kvcache.specs import WrapperCache
from ggmodel.model import Step
from ggmodel.runner import LoadedModel
from ggmodel.workbench.estimate import needed
from ggmodel.workbench.golden import nmse, source_of
from tests.convert.folders import write_model
from tests.golden.text import golden_of

# Squared error over squared values. Sums in other orders make 1e-12; a wrong entry 1e-3 and more.
BOUND = 1e-9
SEQUENCES, VOCABULARY, LONGEST = 3, 64, 60
WAYS = {
    "ordered": {},
    "masks": {"flash_attention": "off"},
    "deterministic": {"deterministic": True},
}


def load(**options: Any) -> LoadedModel:
    shape = {"context_length": 64, "batch_size": 16, "parallel": SEQUENCES, "threads": 1}
    source = source_of(golden_of("deepseek4/rates"))
    return ggmodel.load(source, **{"kv_type": "f32", **shape, **options})


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(way: str) -> Iterator[LoadedModel]:
    with load(**WAYS[way]) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def alone() -> Iterator[LoadedModel]:
    with load(parallel=1, batch_size=64, flash_attention="off") as loaded:
        yield loaded


class Run:
    """A model's cache, and texts to which the same is done."""

    def __init__(self, model: LoadedModel, alone: LoadedModel):
        self.cache: Cache = model.engine.cache
        self.graphs, self.alone = model.engine.graphs, alone
        self.permuted = model.engine.backend.cache_config.permuted_v
        self.texts: list[list[int]] = [[] for _ in range(SEQUENCES)]
        self.chance = np.random.default_rng(11)

    def put(self, pieces: list[tuple[int, int]]) -> None:
        pieces = [(s, n) for s, n in pieces if len(self.texts[s]) + n < LONGEST]
        for s, _ in pieces:
            point = self.cache.resume_point(s, len(self.texts[s]))
            self.end(s, point)
        if not pieces:
            return
        undone = self._step(pieces)
        self.cache.start_forward(undone)
        self.cache.undo(undone)
        step = self._step(pieces)
        self.cache.start_forward(step)
        got = self.graphs.run(step)
        for s, n in pieces:
            rows = step.sequences == s
            self.texts[s] += step.tokens[rows].tolist()
            assert nmse(got[rows], self.alone.logits(self.texts[s])[-n:]) < BOUND

    def _step(self, pieces: list[tuple[int, int]]) -> Step:
        """A step of random tokens."""
        starts = {s: len(self.texts[s]) for s, _ in pieces}
        places = [np.arange(starts[s], starts[s] + n) for s, n in pieces]
        n = sum(n for _, n in pieces)
        return Step(
            self.chance.integers(2, VOCABULARY, n).astype(np.int32),
            np.concatenate(places, dtype=np.int32),
            np.repeat([s for s, _ in pieces], [n for _, n in pieces]).astype(np.int32),
            np.arange(n, dtype=np.int32),
        )

    def end(self, s: int, begin: int) -> None:
        self.cache.remove(s, begin, None)
        del self.texts[s][begin:]
        assert self.cache.length(s) == len(self.texts[s])

    def middle(self, s: int, begin: int, n: int) -> None:
        if begin + n < len(self.texts[s]):
            with pytest.raises(Error, match="cannot move"):
                self.cache.remove(s, begin, begin + n)
        assert self.cache.length(s) == len(self.texts[s])

    def copy(self, a: int, b: int, n: int) -> None:
        self.cache.copy_prefix(a, b, n)
        self.texts[b] = self.texts[a][:n]

    def restore(self, a: int, b: int) -> None:
        saved = self.cache.save(a)
        assert (saved is None) == self.permuted
        if saved is not None and saved.complete:
            self.cache.restore(b, saved)
            self.texts[b] = [*self.texts[a]]
            assert self.cache.can_resume(b, len(self.texts[b]))

    def wipe(self, s: int) -> None:
        self.cache.wipe(s)
        self.texts[s] = []


NUMBERS, POSITIONS = st.integers(0, SEQUENCES - 1), st.integers(0, 30)
PIECES = st.lists(
    st.tuples(NUMBERS, st.integers(1, 5)), min_size=1, max_size=3, unique_by=itemgetter(0)
)
PUT = st.tuples(st.just("put"), PIECES)
ACTIONS = st.lists(
    st.one_of(
        PUT,
        PUT,
        PUT,
        st.tuples(st.just("put"), st.tuples(st.tuples(NUMBERS, st.integers(10, 16)))),
        st.tuples(st.just("end"), NUMBERS, POSITIONS),
        st.tuples(st.just("middle"), NUMBERS, POSITIONS, st.integers(1, 6)),
        st.tuples(st.just("copy"), NUMBERS, NUMBERS, POSITIONS),
        st.tuples(st.just("restore"), NUMBERS, NUMBERS),
        st.tuples(st.just("wipe"), NUMBERS),
    ),
    min_size=6,
    max_size=16,
)


@given(actions=ACTIONS)
@settings(derandomize=True, deadline=None, max_examples=12, database=None)
def test_any_history(model: LoadedModel, alone: LoadedModel, actions: list):
    for s in range(SEQUENCES):
        model.engine.cache.remove(s, 0, None)
    history = Run(model, alone)
    for name, *arguments in actions:
        getattr(history, name)(*arguments)


def test_rewinding_goes_to_the_rows_that_are_left(model: LoadedModel):
    """Entries are kept, but those of positions 7 to 9 are made of rows from 0 on."""
    cache = model.engine.cache
    for s in range(SEQUENCES):
        cache.remove(s, 0, None)
    history = Run(model, model)
    step = history._step([(0, 12)])
    cache.start_forward(step)
    model.engine.graphs.run(step)
    assert all(cache.can_resume(0, p) for p in range(13))  # one step: nothing was given up
    history.texts[0] = step.tokens.tolist()
    later = history._step([(0, 1)])
    cache.start_forward(later)
    model.engine.graphs.run(later)
    assert [p for p in range(1, 14) if cache.can_resume(0, p)] == [12, 13]


def test_a_text_reads_no_row_of_another(model: LoadedModel):
    """Positions before a text's begin count nothing, and a weight of 0 hides no NaN."""
    cache, graphs = model.engine.cache, model.engine.graphs
    assert isinstance(cache, WrapperCache)
    for s in range(SEQUENCES):
        cache.remove(s, 0, None)
    history = Run(model, model)
    cache.start_forward(first := history._step([(0, 1)]))
    graphs.run(first)
    text, logits = history._step([(1, 12)]), []
    for damaged in (False, True):
        for one in cache.caches if damaged else ():
            if isinstance(one, CompressedCache):
                _damage(one, 0)
        step = Step(text.tokens, text.positions, text.sequences, text.outputs)
        cache.start_forward(step)
        logits.append(graphs.run(step).copy())
        cache.remove(1, 0, None)
    assert np.isfinite(logits[0]).all()
    assert logits[0].tobytes() == logits[1].tobytes()
    cache.wipe(0)


def _damage(cache: CompressedCache, cell: int) -> None:
    """Writes NaN in a cell of the rows."""
    stored = cache.incomplete.stored
    for rows in stored.keys.values():
        nan = np.full((1, rows.dim(0)), np.nan, np.float32)
        stored.backend.write_rows(rows, np.array([cell]), nan.view(np.uint8))


def test_a_batch_that_completes_no_entry_of_an_empty_cache():
    with load(context_length=32) as model, load(flash_attention="off") as other:
        assert nmse(model.logits([5, 6]), other.logits([5, 6])) < BOUND


@pytest.mark.parametrize(
    "wrong",
    [{"entry_positions": 0}, {"row_width": 0}, {"entry_width": 0}, {"most_read": -1}],
    ids=lambda w: next(iter(w)),
)
def test_impossible_declarations(wrong: dict[str, Any]):
    right: dict[str, Any] = {"entry_positions": 4, "row_width": 8, "entry_width": 2}
    with pytest.raises(ConfigError):
        Compressed(**{**right, **wrong})


def test_quantised_entries_are_refused():
    with pytest.raises(Unsupported, match="kv_type q8_0: compressed layers"):
        load(kv_type="q8_0")


def test_an_order_of_two():
    """Rows see the cells of the first order, then those of the second behind them."""
    entries = by_position(np.array([4, 1]), np.array([0, 1]))
    local = by_position(np.array([2, 0, 3]), np.array([5, 6, 7]))
    rows = np.zeros(2, np.int64)
    first = Order.of([entries], rows, np.array([0, 0]), np.array([1, 2]))
    second = Order.of([local], rows, np.array([5, 6]), np.array([7, 8]))
    numbers = joined(first, second, 2, shift=8, size=16)
    assert numbers[:10].reshape(2, 5).tolist() == [[0, 3, 0, 0, 3], [3, 4, 0, 0, 4]]
    assert numbers[10:17].tolist() == [4, 10, 8, 4, 1, 8, 11]
    assert DType.I32.numpy == numbers.dtype


def test_scores_of_an_indexer_are_not_in_memory_for_all_heads(tmp_path: Path):
    golden = golden_of("deepseek4/published")
    graphs: list[int] = []
    for heads in (8, 64):
        weights = dict(golden.weights())
        for name, values in golden.weights().items():
            if "indexer.wq_b" in name or "indexer.weights_proj" in name:
                rows = heads * (64 if "wq_b" in name else 1)
                weights[name] = np.resize(values, (rows, values.shape[1]))
        long = {"index_n_heads": heads, "max_position_embeddings": 1 << 16}
        folder = write_model(tmp_path / str(heads), {**golden.config, **long}, weights)
        graphs.append(needed(folder, context_length=1 << 16, batch_size=64).devices[-1].graph)
    assert graphs[1] < 1.5 * graphs[0]  # 4 times with the scores of all
