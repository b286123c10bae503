"""Log-likelihoods of continuations of prompts, whose common beginnings are computed once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from ...errors import PromptError
from ...resources import Closing
from ..sampling import log_probability
from .engine import Engine
from .saved import common_prefix
from .scoring import Scoring


class Continuations(Closing):
    """Log-likelihoods of tokens behind prompts.

    The cache has two sequences: the latest prompt, which stays as far as the next one begins alike,
    and the continuation under way, a copy of it that goes on.

    Attributes:
        computed: number of inputs that were computed.
    """

    def __init__(self, engine: Engine):
        self._engine, self._scoring = engine, Scoring(engine)
        self._held: list[int] = []
        self._undo = ExitStack()
        self.computed = 0
        make = self._scoring.graphs(engine.model, 2, engine.context_length)
        self._graphs = engine.call(lambda: self._undo.enter_context(make))

    def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[float, bool]:
        """The sum of the tokens' log-probabilities behind the prompt, in nats, and whether each of
        them is the likeliest.

        Args:
            prompt, tokens: ids, at least one of each; together one more than the context at most,
                since nothing follows the last.

        Raises:
            PromptError: there are none, or too many.
        """
        most = self._engine.context_length + 1
        if not prompt or not tokens or len(prompt) + len(tokens) > most:
            raise PromptError(
                f"{len(tokens)} tokens behind {len(prompt)} cannot be scored: at least one of each "
                f"is needed, and at most {most} together, one more than the context_length"
            )
        return self._engine.call(lambda: self._score([*prompt], [*tokens]))

    def _score(self, prompt: list[int], text: list[int]) -> tuple[float, bool]:
        *before, last = prompt
        cache = self._graphs.cache
        self._hold(before)
        cache.copy_prefix(0, 1, len(before))
        try:
            tokens = np.array([last, *text[:-1]], np.int32)
            plan = self._engine.memory_plan
            size = plan.scored if plan.head is None else plan.head.at_once
            rows = self._batches(1, tokens, len(before), 0, size)
            flat = (row for batch in rows for row in batch)
            each = zip(flat, text, strict=True)
            found = [(log_probability(row, one), int(row.argmax()) == one) for row, one in each]
            return math.fsum(one for one, _ in found), all(likeliest for _, likeliest in found)
        finally:
            cache.remove(1, 0, None)

    def _hold(self, tokens: list[int]) -> None:
        """Has the first sequence hold these tokens alone."""
        cache = self._graphs.cache
        n = cache.resume_point(0, common_prefix(self._held, tokens))
        self._held = tokens[:n]
        cache.remove(0, n, None)
        rest = np.array(tokens[n:], np.int32)
        if len(rest):
            size = self._engine.batch_size
            for _ in self._batches(0, rest, n, len(rest), size):
                pass
        self._held = tokens

    def _batches(
        self, sequence: int, tokens: np.ndarray, start: int, first: int, size: int
    ) -> Iterator[np.ndarray]:
        self.computed += len(tokens)
        return self._scoring.batches(self._graphs, sequence, tokens, start, first, size)

    def close(self) -> None:
        """Frees the cache; idempotent."""
        self._engine.call(self._undo.close)
