"""Any history of a cache gives the attention that is recomputed from the whole of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggmodel.errors import Error, KvCacheFull
from ggmodel.kvcache import Cache, Causal, Chunked, Sliding, share_last
from ggmodel.ml import Backend, DType
from ggmodel.model import Step
from ggmodel.nn import Rope
from tests.kvcache.history import BOUND, History, Spec, Token, attend, parts, snapshot

MakeCache = Callable[..., Cache]

WIDTH, VALUES, LONG = 8, 6, 32  # elements of a head; LONG where keys and values come in blocks
SEQUENCES, CAPACITY, MAX_BATCH = 3, 8, 6
ROPE, SLOW = Rope(WIDTH), Rope(WIDTH, base=100.0)
LONG_ROPE = Rope(LONG)

LAYOUTS: dict[str, list[Spec]] = {
    "causal": [Causal(ROPE), Causal(), Causal(SLOW)],
    "causal in groups": [Causal(ROPE, ahead=False), Sliding(3, rope=ROPE)],
    "alibi": [Causal(max_bias=2.0), Causal(max_bias=8.0), Causal(ROPE)],
    "sliding": [Sliding(3, rope=ROPE), Sliding(3)],
    "one position": [Sliding(1, rope=ROPE)],
    "memory": [Sliding(2, memory=5, rope=ROPE)],
    "chunked": [Chunked(4, rope=ROPE), Chunked(4)],
    "mixed": [Sliding(3, rope=ROPE), Causal(SLOW), Chunked(4, rope=ROPE), Sliding(2, 5), Causal()],
    "shared": share_last(
        [Sliding(3, rope=ROPE), Causal(SLOW), Sliding(3, rope=ROPE), Causal(SLOW)], 2
    ),
}
LONG_LAYOUT: list[Spec] = [Causal(LONG_ROPE), Sliding(3, rope=LONG_ROPE), Chunked(4)]

NUMBERS = st.integers(0, SEQUENCES - 1)
POSITIONS = st.integers(0, 12)
PIECES = st.lists(
    st.tuples(NUMBERS, st.integers(1, 4), st.booleans()), min_size=1, max_size=4
)  # sequence, tokens, whether they see each other
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PIECES, st.booleans()),
        st.tuples(st.just("put"), PIECES, st.booleans()),
        st.tuples(st.just("on"), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("failed"), PIECES, st.booleans()),
        st.tuples(st.just("end"), NUMBERS, POSITIONS),
        st.tuples(st.just("middle"), NUMBERS, POSITIONS, st.integers(1, 6)),
        st.tuples(st.just("copy"), NUMBERS, NUMBERS, POSITIONS),
        st.tuples(st.just("expect"), NUMBERS, POSITIONS),
    ),
    min_size=4,
    max_size=14,
)


def examples(n: int) -> settings:
    return settings(
        derandomize=True,
        deadline=None,
        max_examples=n,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],  # a new cache each example
    )


class Run:
    """A cache and its history, to which the same is done."""

    def __init__(self, cache: Cache, specs: list[Spec], dtype: DType):
        self.cache, self.specs, self.dtype = cache, specs, dtype
        self.history = History(specs, SEQUENCES)
        self.d, self.dv = (LONG, LONG) if specs is LONG_LAYOUT else (WIDTH, VALUES)
        self.groups = self.moved = 0

    def act(self, name: str, *args) -> None:
        getattr(self, name)(*args)
        self.history.forget_what_may_be_evicted()
        for s in range(SEQUENCES):
            assert self.cache.length(s) == self.history.length(s)

    def failed(self, pieces: list[tuple[int, int, bool]], apart: bool) -> None:
        """Puts tokens, and takes them back after they were computed."""
        for sequence in {sequence for sequence, _, _ in pieces}:
            self._make_whole(sequence)
        before = [tokens.copy() for tokens in self.history.lists]
        self.put(pieces, apart)
        if self.step.placed:
            self.history.forget_what_may_be_evicted()
            self.step.begun = True
            self.cache.undo(self.step)
            self.history.lists = before

    def put(self, pieces: list[tuple[int, int, bool]], apart: bool) -> None:
        self.step = Step(*(np.zeros(0, np.int32) for _ in range(4)))
        tokens: list[tuple[int, Token]] = []
        for sequence in {sequence for sequence, _, _ in pieces}:
            self._make_whole(sequence)
        for sequence, n, together in pieces:
            if len(tokens) + n > MAX_BATCH:
                continue
            self.groups += together
            group = self.groups if together else 0
            tokens += [(sequence, self.history.append(sequence, group)) for _ in range(n)]
        if not tokens:
            return
        if apart:  # rows of sequences and groups among each other
            tokens = tokens[::2] + tokens[1::2]
        if self._start(tokens):
            self._check(tokens)

    def _check(self, tokens: list[tuple[int, Token]]) -> None:
        got = attend(self.cache, self.step, [t for _, t in tokens], self.specs, self.d, self.dv)
        for layer in range(len(self.specs)):
            want = np.stack(
                [self.history.attention(s, t, layer, self.d, self.dv) for s, t in tokens]
            )
            error = ((got[layer] - want) ** 2).sum() / (want**2).sum()
            assert error < BOUND[self.dtype], self.specs[layer]

    def on(self, n: int, taken_back: bool) -> None:
        """A token more for every sequence, then n times another in the same step, moved on."""
        self.put([(s, 1, False) for s in range(SEQUENCES)], False)
        for _ in range(n):
            before = snapshot(self.cache)
            self.step.positions += 1
            moved = bool(self.step.placed) and self.cache.advance(self.step)
            if moved and taken_back:
                self.cache.undo(self.step)
            if not moved or taken_back:
                assert snapshot(self.cache) == before
                return
            self.moved += 1
            self._check([(s, self.history.append(s, 0)) for s in self.step.sequences.tolist()])

    def _make_whole(self, sequence: int) -> None:
        """Empties a sequence that lacks what its next token would see."""
        end = self.history.length(sequence)
        if not self.cache.can_resume(sequence, end):
            assert not self.history.surely_resumable(sequence, end)
            self.end(sequence, 0)

    def _start(self, tokens: list[tuple[int, Token]]) -> bool:
        self.step = Step(
            np.zeros(len(tokens), np.int32),
            np.array([t.position for _, t in tokens], np.int32),
            np.array([s for s, _ in tokens], np.int32),
            np.zeros(0, np.int32),
            np.array([t.group for _, t in tokens], np.int32) if self.groups else None,
        )
        before = snapshot(self.cache)
        if any(
            not p.rule.bounded and self.history.distinct() > p.table.count
            for p in parts(self.cache)
        ):
            with pytest.raises(KvCacheFull):
                self.cache.start_forward(self.step)
            assert snapshot(self.cache) == before and not self.step.placed
            for s, token in tokens:
                self.history.lists[s].remove(token)
            return False
        self.cache.start_forward(self.step)
        self.cache.undo(self.step)
        assert snapshot(self.cache) == before and not self.step.placed
        self.cache.start_forward(self.step)
        return True

    def expect(self, sequence: int, length: int) -> None:
        self.cache.allocate(sequence, length)

    def end(self, sequence: int, begin: int) -> None:
        self.cache.remove(sequence, begin, None)
        self.history.remove(sequence, begin, 1 << 20)

    def middle(self, sequence: int, begin: int, n: int) -> None:
        before = snapshot(self.cache)
        shared = self.history.shares_what_moves(sequence, begin, begin + n)
        # A window may have lost what the sequences shared.
        refused = shared and (self._keeps_all() or not self._may_move(sequence, begin, begin + n))
        if refused:
            with pytest.raises(Error, match="shares"):
                self.cache.remove(sequence, begin, begin + n)
            assert snapshot(self.cache) == before
        elif shared:
            self.end(sequence, 0)
        else:
            self.cache.remove(sequence, begin, begin + n)
            self.history.remove(sequence, begin, begin + n)

    def _keeps_all(self) -> bool:
        return any(not part.rule.bounded for part in parts(self.cache))

    def _may_move(self, sequence: int, begin: int, end: int) -> bool:
        try:
            self.cache.check_remove(sequence, begin, end)
        except Error:
            return False
        return True

    def copy(self, source: int, target: int, n: int) -> None:
        self.cache.copy_prefix(source, target, n)
        self.history.copy_prefix(source, target, n)


def play(make_cache: MakeCache, specs: list[Spec], dtype: DType, actions: list) -> int:
    """Returns how many steps were moved on."""
    cache = make_cache(SEQUENCES, CAPACITY, specs, dtype, MAX_BATCH)
    run = Run(cache, specs, dtype)
    for action in actions:
        run.act(*action)
    cache.close()
    return run.moved


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_of_single_tokens_move_on(make_cache: MakeCache, layout: str):
    specs = LAYOUTS[layout]
    actions = [("put", [(0, 2, False)], False), *[("on", 9, False)] * 3]
    # Not for long where all is kept, or where a new chunk begins.
    least = 9 if all(isinstance(spec, Sliding) for spec in specs) else 1
    assert play(make_cache, specs, DType.F32, actions) >= least


@pytest.mark.parametrize("layout", LAYOUTS)
@given(actions=ACTIONS)
@examples(25)
def test_any_history(make_cache: MakeCache, layout: str, actions: list):
    play(make_cache, LAYOUTS[layout], DType.F32, actions)


@given(actions=ACTIONS)
@examples(25)
def test_any_history_with_padded_masks(
    make_cache: MakeCache, backend: Backend, monkeypatch: pytest.MonkeyPatch, actions: list
):
    padded = replace(backend.cache_config, mask_batch_padding=8)
    monkeypatch.setattr(backend, "cache_config", padded)
    play(make_cache, LAYOUTS["mixed"], DType.F32, actions)


@given(actions=ACTIONS)
@examples(15)
def test_any_history_in_halves(make_cache: MakeCache, actions: list):
    play(make_cache, LAYOUTS["mixed"], DType.F16, actions)


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0], ids=str)
@given(actions=ACTIONS)
@examples(20)
def test_any_history_in_blocks(
    make_cache: MakeCache, backend: Backend, dtype: DType, actions: list
):
    if backend.flash_attention:
        play(make_cache, LONG_LAYOUT, dtype, actions)
