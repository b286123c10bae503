"""A sequence gets the same in a shared cache, at any schedule, as in a cache of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import Error, KvCacheFull
from ggmodel.model import Step, find
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.graphs import Graphs
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench.golden import nmse
from tests.golden.files import load_golden
from tests.kvcache import statespace

SEQUENCES, CAPACITY, MAX_BATCH = 5, 160, 24
# Float32 adds up in another order in another batch. Masks, cells or positions that are wrong make
# 1e-4 and more of it.
BOUND = 1e-9
# All positions, windows, both, chunks; recurrent layers, alone and beside attention. None has gelu,
# which ggml takes from a table of halves: there a bit that falls the other way makes 1e-8.
MODELS = [
    "llama/plain_gqa",
    "mistral/window",
    "qwen2/layer_types",
    "llama4/interleaved",
    "ss",
    "sa",
]
Text = list[int]


def load(name: str, flash: str) -> LoadedModel:
    options: dict[str, Any] = {
        "context_length": 1024,
        "parallel": 3,
        "threads": 1,
        "kv_type": "f32",
        "flash_attention": flash,
    }
    if "/" not in name:
        return ggmodel.load(statespace.source(name), models=statespace.MODELS, **options)
    architecture, case = name.split("/")
    golden = load_golden(architecture, case)
    source = from_hf(find(architecture), golden.config, golden.weights())
    return ggmodel.load(source, **options)


@pytest.fixture(
    scope="module", params=[(name, flash) for name in MODELS for flash in ("on", "off")]
)
def model(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    with load(*request.param) as loaded:
        yield loaded


@dataclass
class Sequence:
    """The history of a sequence: texts that were appended, removals as (begin, end)."""

    log: list[Text | tuple[int, int | None]] = field(default_factory=list)
    length: int = 0


class Schedule:
    """Random batches of several sequences in one cache, and what each gave."""

    def __init__(self, graphs: Graphs, vocabulary: int, seed: int):
        self.graphs, self.cache = graphs, graphs.cache
        self.chance, self.vocabulary = random.Random(seed), vocabulary
        self.sequences = [Sequence() for _ in range(SEQUENCES)]
        self.results: list[tuple[list[Text | tuple[int, int | None]], np.ndarray]] = []
        self.last: tuple[Step, list[int]] | None = None

    def run(self, actions: int) -> None:
        kinds = [self.put, self.put, self.on, self.on, self.rewind, self.fork, self.shift]
        for _ in range(actions):
            self.chance.choice([*kinds, self.expect, self.end])()
            for s, sequence in enumerate(self.sequences):
                assert self.cache.length(s) == sequence.length

    def put(self) -> None:
        """A batch of pieces of some sequences, long and short."""
        pieces = dict[int, Text]()
        for s in self.chance.sample(range(SEQUENCES), self.chance.randint(1, SEQUENCES)):
            n = self.chance.choice([1, 1, 2, 9, 20])
            n = min(
                n, CAPACITY - self.sequences[s].length, MAX_BATCH - sum(map(len, pieces.values()))
            )
            if n > 0 and self.cache.can_resume(s, self.sequences[s].length):
                pieces[s] = self._tokens(n)
        if pieces:
            self._compute(pieces)

    def on(self) -> None:
        """The latest step with the next tokens, as the engine goes on."""
        if self.last is None:
            return
        step, sequences = self.last
        if any(self.sequences[s].length >= CAPACITY for s in sequences):
            return
        tokens = {s: self._tokens(1) for s in sequences}
        step.tokens = np.array([tokens[s][0] for s in sequences], np.int32)
        step.positions += 1
        step.begun = False
        moved = self.cache.advance(step)
        if moved:
            self._take(tokens, self.graphs.run(step).copy())
        else:
            self.last = None

    def _compute(self, pieces: dict[int, Text]) -> None:
        rows = [
            (s, self.sequences[s].length + i)
            for s, text in pieces.items()
            for i in range(len(text))
        ]
        ends = np.cumsum([len(text) for text in pieces.values()]) - 1
        step = Step(
            np.array([t for text in pieces.values() for t in text], np.int32),
            np.array([p for _, p in rows], np.int32),
            np.array([s for s, _ in rows], np.int32),
            ends.astype(np.int32),
        )
        try:
            self.cache.start_forward(step)
        except KvCacheFull:
            return
        if self.chance.random() < 0.1:  # never computed
            self.cache.undo(step)
            return
        self._take(pieces, self.graphs.run(step).copy())
        self.last = (step, list(pieces)) if all(len(t) == 1 for t in pieces.values()) else None

    def _take(self, pieces: dict[int, Text], rows: np.ndarray) -> None:
        for (s, text), row in zip(pieces.items(), rows, strict=True):
            sequence = self.sequences[s]
            sequence.log.append(text)
            sequence.length += len(text)
            self.results.append((sequence.log.copy(), row))

    def rewind(self) -> None:
        s = self.chance.randrange(SEQUENCES)
        sequence = self.sequences[s]
        at = self.cache.resume_point(s, self.chance.randint(0, sequence.length))
        self._cut(s, at)

    def end(self) -> None:
        self._cut(self.chance.randrange(SEQUENCES), 0)

    def _cut(self, s: int, at: int) -> None:
        self.cache.remove(s, at, None)
        sequence = self.sequences[s]
        sequence.log, sequence.length = [*sequence.log, (at, None)] if at else [], at
        self.last = None

    def fork(self) -> None:
        source, target = self.chance.sample(range(SEQUENCES), 2)
        at = self.cache.resume_point(source, self.sequences[source].length)
        self.cache.copy_prefix(source, target, at)
        self.sequences[target] = Sequence([*self.sequences[source].log, (at, None)], at)
        self.last = None

    def shift(self) -> None:
        s = self.chance.randrange(SEQUENCES)
        sequence = self.sequences[s]
        if sequence.length < 4:
            return
        begin = self.chance.randint(0, sequence.length - 2)
        end = self.chance.randint(begin + 1, sequence.length - 1)
        try:
            self.cache.remove(s, begin, end)
        except Error:
            return
        sequence.log, sequence.length = [*sequence.log, (begin, end)], sequence.length - end + begin
        self.last = None
        if not self.cache.can_resume(s, sequence.length):
            self._cut(s, 0)

    def expect(self) -> None:
        s = self.chance.randrange(SEQUENCES)
        self.cache.allocate(s, self.chance.choice([0, self.sequences[s].length + 8, CAPACITY]))

    def _tokens(self, n: int) -> Text:
        return [self.chance.randrange(self.vocabulary) for _ in range(n)]


def alone(graphs: Graphs, log: list[Text | tuple[int, int | None]]) -> np.ndarray:
    """The result after the last text of a log, in a cache of its own."""
    cache, length = graphs.cache, 0
    cache.remove(0, 0, None)
    row = np.zeros(0, np.float32)
    for entry in log:
        if isinstance(entry, tuple):
            begin, end = entry
            cache.remove(0, begin, end)
            length = cache.length(0)
            continue
        n = len(entry)
        positions = np.arange(length, length + n, dtype=np.int32)
        last = np.array([n - 1], np.int32)
        step = Step(np.array(entry, np.int32), positions, np.zeros(n, np.int32), last)
        cache.start_forward(step)
        row = graphs.run(step)[0].copy()
        length += n
    return row


@pytest.mark.parametrize("seed", range(3))
def test_each_sequence_gets_what_it_gets_alone(model: LoadedModel, seed: int):
    engine = model.engine

    def compare() -> None:
        with ExitStack() as stack:
            apart = Scoring(engine).graphs
            together = stack.enter_context(apart(engine.model, SEQUENCES, CAPACITY, MAX_BATCH))
            own = stack.enter_context(apart(engine.model, 1, CAPACITY, MAX_BATCH))
            schedule = Schedule(together, engine.vocabulary, seed)
            schedule.run(60)
            assert len(schedule.results) > 20
            for log, got in schedule.results[-1::-7]:
                assert nmse(got, alone(own, log)) <= BOUND

    engine.call(compare)
