"""The decode loop: sample, watch for the end, hand out text."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .completion import Completion, FinishReason, Piece, Usage
from .engine import Engine
from .sampling import Sampler, log_probability

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer


class Detokenizer(Protocol):
    """Turns tokens into text that is complete so far (see `Tokenizer.stream`)."""

    def push(self, token: int, /) -> str: ...

    def flush(self) -> str: ...


class StopStrings:
    """Holds back text that may turn out to be the beginning of a stop string."""

    def __init__(self, stops: Iterable[str]):
        self._stops = [s for s in stops if s]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that can be handed out now; `stopped` tells whether a stop string came."""
        if not self._stops:
            return text
        held = self._held + text
        found = [i for i in (held.find(s) for s in self._stops) if i >= 0]
        if found:
            self.stopped, self._held = True, ""
            return held[: min(found)]
        keep = max(_overlap(held, s) for s in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What is still held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class Generation:
    """One request: `run()` it, or iterate over `pieces()` and look at `usage` in the end.

    Args:
        prompt: int32 [n], checked.
        max_tokens: None goes on to the end of the context.
        logprobs: note the log-probability of each token.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None,
        prompt: np.ndarray,
        sampler: Sampler,
        *,
        max_tokens: int | None,
        stop: Iterable[str],
        logprobs: bool,
    ):
        self._engine, self._tokenizer, self._prompt = engine, tokenizer, prompt
        self._sampler, self._stop = sampler, StopStrings(stop)
        room = engine.context_length - len(prompt)
        self._max = room if max_tokens is None else min(max_tokens, room)
        self._want_logprobs = logprobs
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason: FinishReason = "length"
        self._times = (0.0, 0.0, 0.0)

    def pieces(self) -> Generator[Piece, None, None]:
        """The text, a piece a token. Closing the generator ends the request."""
        eog = self._tokenizer.eog if self._tokenizer is not None else frozenset()
        text: Detokenizer = _NoText()
        if self._tokenizer is not None:
            text = self._tokenizer.stream(after=int(self._prompt[-1]))
        started = time.perf_counter()
        with self._engine.slot() as sequence:
            logits = self._engine.extend(sequence, self._prompt, 0)
            prompted = time.perf_counter()
            self._times = (started, prompted, prompted)
            while len(self.tokens) < self._max:
                token = self._sampler.sample(logits)
                if token in eog:
                    self.finish_reason = "stop"
                    break
                logprob = log_probability(logits, token) if self._want_logprobs else None
                self.tokens.append(token)
                if logprob is not None:
                    self.logprobs.append(logprob)
                self._times = (started, prompted, time.perf_counter())
                yield Piece(self._stop.push(text.push(token)), token, logprob)
                if self._stop.stopped:
                    self.finish_reason = "stop"
                    return
                if len(self.tokens) < self._max:
                    position = len(self._prompt) + len(self.tokens) - 1
                    logits = self._engine.extend(sequence, np.array([token], np.int32), position)
        rest = self._stop.push(text.flush())
        rest += "" if self._stop.stopped else self._stop.flush()
        if rest and self.tokens:
            yield Piece(rest, self.tokens[-1])

    @property
    def usage(self) -> Usage:
        started, prompted, now = self._times
        return Usage(len(self._prompt), len(self.tokens), prompted - started, now - prompted)

    def run(self) -> Completion:
        """Generates to the end."""
        text = "".join(self.pieces())
        logprobs = self.logprobs if self._want_logprobs else None
        return Completion(text, self.tokens, self.finish_reason, self.usage, logprobs)


class _NoText:
    """Detokenisation for a model without a vocabulary: no text, only tokens."""

    def push(self, token: int, /) -> str:
        return ""

    def flush(self) -> str:
        return ""
