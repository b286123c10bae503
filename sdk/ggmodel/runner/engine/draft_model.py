"""Drafts by a smaller model."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import numpy as np

from ...errors import Error
from .drafting import Costs, Rated
from .engine import Engine
from .sequences import Sequence

_BEHIND = 16  # tokens that may have to be read before others are looked at that have read them


class DraftModel(Rated):
    """Drafts by a smaller model with the same tokens, a batch for each further token.

    Its sequences follow those of the large model, by number, in caches of their own. It chooses as
    the request will: with copies of its sampler, random numbers, penalties and grammar. Drafts are
    thus accepted as far as both models agree, at any temperature.

    Images are left out of what it reads. It reads a prompt when it is to draft for the first time,
    a batch at a time between those of the large model.

    Args:
        engine: of the draft model; nobody else uses it.
        most: draft tokens of a sequence at once.
        share: its cost as a share of the large model's, until it is measured.
        vocabulary: tokens of the large model.
        plain: seconds of the large model's batch of so many tokens.
    """

    def __init__(
        self,
        engine: Engine,
        most: int,
        share: float,
        vocabulary: int,
        plain: Callable[[int], float],
    ):
        self._engine, self._most, self._share, self._plain = engine, most, share, plain
        self._vocabulary = vocabulary
        self._costs = Costs()
        super().__init__(len(engine.sequences.all))

    def _room(self, sequence: Sequence) -> int:
        left = self._engine.context_length - len(sequence.tokens) - len(sequence.pending)
        return max(0, min(self._most, left))

    def seconds(self, lengths: Collection[int]) -> float:
        rounds = (sum(n > i for n in lengths) for i in range(max(lengths, default=0)))
        return sum(self._round(size) for size in rounds)

    def _round(self, size: int) -> float:
        return self._costs.of(size) if self._costs.largest else self._share * self._plain(size)

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """
        Draft tokens, at most as many as asked for; none for a sequence whose text is not read yet,
        or that the draft model fails for.
        """
        try:
            with self._engine.backend.turn.lock:
                return self._draft(lengths)
        except Error:
            return {}  # a device is lost, say

    def _draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        drafts: dict[Sequence, list[int]] = {}
        left = {self._followed(one): (one, n) for one, n in lengths.items()}
        choose = {own: one.request.foresee() for own, (one, _) in left.items() if one.request}
        while left:
            began, recorded = time.perf_counter(), self._engine.graphs.recorded
            pending = [(own, len(own.tokens), own.pending) for own in left]
            chunks = self._engine.planner.plan(pending)
            results = self._engine.steps.results(chunks)
            known = recorded == self._engine.graphs.recorded
            if known and all(len(chunk.numbers) == 1 for chunk in chunks):
                self._costs.note(len(chunks), time.perf_counter() - began)
            going = {}
            for chunk, result in results:
                own = chunk.sequence
                one, n = left[own]
                token = self._token(result, choose[own])
                if token is None:
                    continue
                drafts.setdefault(one, []).append(token)
                if len(drafts[one]) < n:
                    own.pending = [token]
                    going[own] = one, n
            left = going
        return drafts

    def _followed(self, sequence: Sequence) -> Sequence:
        """The draft model's own sequence, with the text of the large model's; the rest of it is
        pending."""
        own, others = self._engine.sequences.all[sequence.number], self._engine.sequences.all
        own.owner = self  # its cells are not given up for others
        text = [token for token in sequence.tokens + sequence.pending if token >= 0]
        cache, source = self._engine.cache, own
        cached = own.cached(cache, text[:-1])
        if len(text) - cached > _BEHIND:  # another one may have read it
            source = max(others, key=lambda other: (other.cached(cache, text[:-1]), other is own))
            cached = source.cached(cache, text[:-1])
        own.begin(text, source, cached)
        return own

    def _token(
        self, result: np.ndarray | Exception | None, choose: Callable[[np.ndarray], int | None]
    ) -> int | None:
        """The token that the request would choose from these logits [1, n]; None at its end, and
        without logits."""
        if not isinstance(result, np.ndarray):
            return None
        logits = result[0][: self._vocabulary]
        if len(logits) < self._vocabulary:
            missing = self._vocabulary - len(logits)
            logits = np.pad(logits, (0, missing), constant_values=-np.inf)
        try:
            return choose(logits)
        except Error:  # NaN, or a grammar without a way on
            return None
