"""A model with recurrent layers gives what numpy computes from the whole text, whatever its caches
went through; with `a`, one of its layers has attention instead."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggmodel
from ggmodel.errors import Error
from ggmodel.kvcache import Cache, CausalCache, RecurrentCache, WrapperCache
from ggmodel.model import Step
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse
from tests.kvcache.naive import run
from tests.kvcache.statespace import MODELS, VOCABULARY, logits, source

# Squared error over squared values: that of float32 is 1e-12; a state that is lost, or another
# sequence's, makes 1e-3 and more of it.
BOUND = 1e-10
SEQUENCES = 3
TEXT = np.random.default_rng(3).integers(0, VOCABULARY, 40).tolist()

Text = list[int]


def load(kinds: str, **options: Any) -> LoadedModel:
    given = {"context_length": 128, "batch_size": 8, "parallel": SEQUENCES, "threads": 1, **options}
    return ggmodel.load(source(kinds), models=MODELS, kv_type="f32", flash_attention="off", **given)


@pytest.fixture(scope="module", params=["ss", "sa", "as"])
def kinds(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def shared(kinds: str) -> Iterator[LoadedModel]:
    with load(kinds) as loaded:
        yield loaded


@pytest.fixture
def model(shared: LoadedModel) -> LoadedModel:
    """Its sequences are empty."""
    engine = shared.engine

    def empty() -> None:
        engine.scheduler.admit()  # cancelled requests leave their sequences
        for slot in engine.sequences.all:
            assert slot.free
            slot.cut(0)

    engine.call(empty)
    return shared


def greedy(kinds: str, prompt: Sequence[int], n: int) -> Text:
    text = list(prompt)
    for _ in range(n):
        text.append(int(logits(kinds, text)[-1].argmax()))
    return text[len(prompt) :]


# one text


def test_the_caches_are_those_declared(model: LoadedModel, kinds: str):
    cache: Any = model.engine.cache
    caches = cache.caches if isinstance(cache, WrapperCache) else [cache]
    wanted = {"s": RecurrentCache, "a": CausalCache}
    assert [type(c) for c in caches] == [wanted[kind] for kind in dict.fromkeys(kinds)]


@pytest.mark.parametrize("backend", ["ggml", "reference"])
@pytest.mark.parametrize("batch_size", [1, 7, 512])
def test_logits(kinds: str, backend: str, batch_size: int):
    with load(kinds, backend=backend, batch_size=batch_size) as model:
        assert nmse(model.logits(TEXT), logits(kinds, TEXT)) < BOUND


def test_a_lost_state_is_noticed(kinds: str):
    """The bound tells right from wrong."""
    assert nmse(logits(kinds, TEXT[8:])[:4], logits(kinds, TEXT)[8:12]) > 1e6 * BOUND
    assert nmse(logits(kinds, TEXT[:1] + TEXT[2:])[-1], logits(kinds, TEXT)[-1]) > 100 * BOUND


# any history


NUMBERS = st.integers(0, SEQUENCES - 1)
POSITIONS = st.integers(0, 12)
PIECES = st.lists(
    st.tuples(NUMBERS, st.integers(1, 4)), min_size=1, max_size=3, unique_by=itemgetter(0)
)
PUT = st.tuples(st.just("put"), PIECES)
ACTIONS = st.lists(
    st.one_of(
        PUT,
        PUT,
        PUT,
        st.tuples(st.just("end"), NUMBERS, POSITIONS),
        st.tuples(st.just("middle"), NUMBERS, POSITIONS, st.integers(1, 6)),
        st.tuples(st.just("copy"), NUMBERS, NUMBERS, POSITIONS),
        st.tuples(st.just("wipe"), NUMBERS),
    ),
    min_size=6,
    max_size=16,
)


class Run:
    """A model's cache, and texts to which the same is done.

    Attributes:
        ends: of each text where steps of it ended that may be gone back to, and whether they had
            several of its tokens.
    """

    def __init__(self, model: LoadedModel, kinds: str):
        self.cache: Cache = model.engine.cache
        self.graphs, self.kinds = model.engine.graphs, kinds
        self.texts: list[Text] = [[] for _ in range(SEQUENCES)]
        self.ends: list[list[tuple[int, bool]]] = [[] for _ in range(SEQUENCES)]
        self.chance = np.random.default_rng(11)

    def act(self, name: str, *args: Any) -> None:
        getattr(self, name)(*args)
        for s in range(SEQUENCES):
            assert self.cache.length(s) == len(self.texts[s])
            points = {0} | {p for p, _ in self.ends[s]}
            assert points == {p for p in range(60) if self.cache.can_resume(s, p)}
            for p in range(14):
                assert self.cache.resume_point(s, p) == max(q for q in points if q <= p)

    def put(self, pieces: list[tuple[int, int]]) -> None:
        for s, _ in pieces:
            if not self.cache.can_resume(s, len(self.texts[s])):
                with pytest.raises(Error, match=f"sequence {s}, of .* cannot go on"):
                    self.cache.start_forward(run(s, len(self.texts[s]), len(self.texts[s]) + 1))
                self.end(s, self.cache.resume_point(s, len(self.texts[s])))
        undone = self._step(pieces)
        self.cache.start_forward(undone)
        self.graphs.run(undone)  # as if it had failed then
        self.cache.undo(undone)
        step = self._step(pieces)
        self.cache.start_forward(step)
        got = self.graphs.run(step)
        for s, n in pieces:
            rows = step.sequences == s
            self.texts[s] += step.tokens[rows].tolist()
            kept = [end for end in self.ends[s] if end[1]]
            self.ends[s] = [*kept[-2:], (len(self.texts[s]), n > 1)]
            assert nmse(got[rows], logits(self.kinds, self.texts[s])[-n:]) < BOUND

    def _step(self, pieces: list[tuple[int, int]]) -> Step:
        """A step of random tokens."""
        starts = {s: len(self.texts[s]) for s, _ in pieces}
        n = sum(n for _, n in pieces)
        return Step(
            self.chance.integers(0, VOCABULARY, n).astype(np.int32),
            np.concatenate(
                [np.arange(starts[s], starts[s] + n) for s, n in pieces], dtype=np.int32
            ),
            np.repeat([s for s, _ in pieces], [n for _, n in pieces]).astype(np.int32),
            np.arange(n, dtype=np.int32),
        )

    def end(self, s: int, begin: int) -> None:
        self.cache.remove(s, begin, None)
        self._cut(s, begin)

    def middle(self, s: int, begin: int, n: int) -> None:
        if begin + n < len(self.texts[s]):
            with pytest.raises(Error, match="cannot lose"):
                self.cache.remove(s, begin, begin + n)
        else:
            self.cache.remove(s, begin, begin + n)
            self._cut(s, begin)

    def copy(self, a: int, b: int, n: int) -> None:
        self.cache.copy_prefix(a, b, n)
        self.texts[b], self.ends[b] = self.texts[a].copy(), self.ends[a].copy()
        self._cut(b, n)

    def wipe(self, s: int) -> None:
        self.cache.wipe(s)
        self._cut(s, 0)

    def _cut(self, s: int, n: int) -> None:
        del self.texts[s][n:]
        self.ends[s] = [end for end in self.ends[s] if end[0] <= n]


def play(model: LoadedModel, kinds: str, actions: list) -> None:
    for s in range(SEQUENCES):
        model.engine.cache.remove(s, 0, None)
    history = Run(model, kinds)
    for action in actions:
        history.act(*action)


@given(actions=ACTIONS)
@settings(derandomize=True, deadline=None, max_examples=40, database=None)
def test_any_history(shared: LoadedModel, kinds: str, actions: list):
    play(shared, kinds, actions)


def test_any_history_of_the_reference(kinds: str):
    actions = [
        ("put", [(0, 4), (1, 2)]),
        ("put", [(1, 1), (0, 1), (2, 3)]),
        ("copy", 0, 2, 4),
        ("put", [(2, 1), (0, 1), (1, 4)]),
        ("middle", 1, 0, 2),
        ("end", 1, 2),
        ("put", [(0, 2), (1, 2), (2, 2)]),
    ]
    with load(kinds, backend="reference") as model:
        play(model, kinds, actions)


# requests


def test_generating(model: LoadedModel, kinds: str):
    for n in (1, 3, 8, 20):
        assert model.generate(TEXT[:n], max_tokens=12, temperature=0).tokens == greedy(
            kinds, TEXT[:n], 12
        )


def test_decoding_replays_graphs(model: LoadedModel):
    graphs = model.engine.graphs
    streams = [model.stream(TEXT[n:20], max_tokens=30, temperature=0) for n in (0, 3, 5)]
    for stream in streams:
        next(stream)
    for _ in range(12):
        for stream in streams:
            next(stream)
    recorded = graphs.recorded
    for _ in range(10):
        for stream in streams:
            next(stream)
    assert graphs.recorded == recorded
    for stream in streams:
        stream.close()


def test_requests_at_once_get_what_each_gets_alone(model: LoadedModel, kinds: str):
    chance = random.Random(5)
    prompts = [TEXT[i : i + chance.randint(1, 20)] for i in range(20)]
    lengths = [chance.randint(1, 15) for _ in prompts]
    cancelled = {i: chance.randint(1, 5) for i in range(20) if chance.random() < 0.3}
    answers: dict[int, Text] = {}
    errors: list[BaseException] = []

    def serve(indices: range) -> None:
        try:
            for i in indices:
                stream = model.stream(prompts[i], max_tokens=lengths[i], temperature=0)
                answers[i] = []
                for piece in stream:
                    answers[i].append(piece.token)
                    if cancelled.get(i) == len(answers[i]):
                        stream.close()
                        break
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(range(n, 20, 5),)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors and len(answers) == 20
    for i, got in answers.items():
        assert got == greedy(kinds, prompts[i], min(lengths[i], cancelled.get(i, 99)))


def computed(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of tokens of all steps from now on."""
    steps: list[int] = []
    start = model.engine.cache.start_forward

    def noted(step: Step, reserve: bool = False) -> None:
        start(step, reserve)
        steps.append(len(step.tokens))

    monkeypatch.setattr(model.engine.cache, "start_forward", noted)
    return steps


def test_a_conversation_goes_on_where_it_ended(
    model: LoadedModel, kinds: str, monkeypatch: pytest.MonkeyPatch
):
    steps = computed(model, monkeypatch)
    first = model.generate(TEXT[:12], max_tokens=4, temperature=0)
    assert sum(steps) == 12 + 3  # in which batches depends on the prompts before it
    steps.clear()
    prompt = [*TEXT[:12], *first.tokens, *TEXT[20:23]]
    again = model.generate(prompt, max_tokens=3, temperature=0)
    assert steps == [4, 1, 1]  # the last token of the answer was never computed
    assert again.tokens == greedy(kinds, prompt, 3)


def test_prompts_that_part_behind_a_checkpoint_go_on_from_there(
    model: LoadedModel, kinds: str, monkeypatch: pytest.MonkeyPatch
):
    model.generate(TEXT[:13], max_tokens=3, temperature=0)
    steps = computed(model, monkeypatch)
    for prompt in (TEXT[:13], [*TEXT[:10], *TEXT[20:24]]):
        again = model.generate(prompt, max_tokens=3, temperature=0)
        assert steps == [len(prompt) - 8, 1, 1]
        assert again.tokens == greedy(kinds, prompt, 3)
        steps.clear()


def test_a_busy_slot_lends_a_checkpoint(model: LoadedModel, kinds: str):
    one = model.stream(TEXT[:11], max_tokens=20, temperature=0)
    begun = [next(one).token]
    prompt = [*TEXT[:9], *TEXT[20:24]]
    two = model.stream(prompt, max_tokens=20, temperature=0)  # more than are computed ahead
    got = [next(two).token]
    busy = [slot.number for slot in model.engine.sequences.all if not slot.free]
    cache: Any = model.engine.cache
    states = next(c for c in getattr(cache, "caches", [cache]) if isinstance(c, RecurrentCache))
    first, second = ({(s.position, s.slot) for s in states.states[i]} for i in busy)
    assert [position for position, _ in first & second] == [8]
    assert got + [piece.token for piece in two] == greedy(kinds, prompt, 20)
    assert begun + [piece.token for piece in one] == greedy(kinds, TEXT[:11], 20)


@pytest.mark.parametrize("keep", [0, 5])
def test_a_full_context_is_shifted(kinds: str, keep: int):
    """The rest is computed again."""
    prompt, context = TEXT[:10], 16
    with load(kinds, context_length=context, batch_size=6) as model:
        done = model.generate(
            prompt, max_tokens=30, temperature=0, context_shift=True, num_keep=keep
        )
    held, want = list(prompt), []
    for _ in range(30):
        want.append(int(logits(kinds, held)[-1].argmax()))
        if len(held) == context:  # no room for the token that comes
            end = keep + (context - keep) // 2
            held = held[:keep] + held[end:]
        held.append(want[-1])
    assert done.tokens == want


def test_a_failing_step_leaves_the_others(model: LoadedModel, kinds: str, monkeypatch: Any):
    """The step is undone and computed for each alone; who fails again begins anew."""
    graphs = model.engine.graphs
    compute = graphs.run
    failures = iter([True, True])
    submit, submitted, both = model.engine.submit, [], threading.Event()

    def counted(request: Any) -> None:
        submit(request)
        submitted.append(request)
        if len(submitted) == 2:
            both.set()

    def failing(step: Step, *begun: Any) -> np.ndarray:
        assert both.wait(10)
        rows = compute(step, *begun)
        if len(set(step.sequences.tolist())) == 2 and next(failures, False):
            raise Error("the device is gone")
        return rows

    monkeypatch.setattr(graphs, "run", failing)
    monkeypatch.setattr(model.engine, "submit", counted)
    got = model.batch([TEXT[:9], TEXT[9:18]], max_tokens=16, temperature=0)
    assert next(failures, None) is None  # both have been
    wanted = [greedy(kinds, TEXT[:9], 16), greedy(kinds, TEXT[9:18], 16)]
    assert [answer.tokens for answer in got] == wanted
