"""A request: sample, watch for the end, hand out text."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...errors import ConfigError, TokenizerError
from ..engine.engine import Engine
from ..engine.guessing import Lookup
from ..sampling import Sampler, log_probabilities
from .completion import Completion, FinishReason, Piece, Usage

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer
    from .structured import Grammar

# Tokens computed before anyone has asked for them: what keeps several requests in one batch.
_AHEAD = 8


class Detokenizer(Protocol):
    """Turns tokens into text that is complete so far (see `Tokenizer.stream`)."""

    def push(self, token: int, /) -> str: ...

    def flush(self) -> str: ...


class StopStrings:
    """Holds back text that may turn out to be the beginning of a stop string.

    Attributes:
        stopped: one came. watches: there are any.
    """

    def __init__(self, stops: Iterable[str]):
        self._stops = [s for s in stops if s]
        self._held = ""
        self.stopped, self.watches = False, bool(self._stops)

    def push(self, text: str) -> str:
        """The text that can be handed out now; `stopped` tells whether a stop string came."""
        if not self.watches:
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

    The engine calls `accept` with each token's logits, in whichever thread takes the step; the one
    that iterates finds the pieces in a queue.

    Args:
        prompt: int32 [n], checked.
        max_tokens: None goes on to the end of the context.
        logprobs: note the log-probability of each token.
        top_logprobs: and those of so many of the likeliest.
        grammar: what the text has to obey.
        context_shift: when the context is full, forget half of it rather than end.
        num_keep: tokens at the beginning that are never forgotten.
        prompt_lookup: guess ahead what repeats prompt or answer; see `speculation`.

    Attributes:
        done: nothing more will come. failed: because of an error. cancelled: because nobody wants
            it any more.
        noting: a token has been chosen, and what follows from that is not all noted yet.
        consumer: who takes the pieces, a thread or a task.
        lookup: what guesses how the answer goes on, if anything does.
        drafted, accepted: guesses that were computed, and those of them that came true.
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
        logprobs: bool = False,
        top_logprobs: int = 0,
        grammar: Grammar | None = None,
        context_shift: bool = False,
        num_keep: int = 0,
        prompt_lookup: bool = False,
    ):
        if grammar is not None and tokenizer is None:
            raise TokenizerError("a grammar needs a vocabulary, which this file has not")
        if grammar is not None and context_shift and max_tokens is None:
            raise ConfigError("a grammar may have no end: with context_shift it needs max_tokens")

        self.prompt, self.context_shift, self.num_keep = prompt, context_shift, num_keep
        self._engine = engine
        constraint = None
        if grammar is not None and tokenizer is not None:
            constraint = grammar.begin(tokenizer)
        tokens = prompt[prompt >= 0].tolist()  # without what stands for images
        self._sampling = sampler.begin(tokens, constraint=constraint)
        self._keeps_logits = type(sampler) is not Sampler  # one of a user's may
        self._may_finish = constraint is not None or self._keeps_logits
        self._stop = StopStrings(stop)
        self._eog = tokenizer.eog if tokenizer is not None else frozenset[int]()
        self._text: Detokenizer = _NoText()
        if tokenizer is not None:
            after = int(prompt[-1])
            self._text = tokenizer.stream(after=after if after >= 0 else None)
        room = engine.context_length - len(prompt)
        if context_shift:
            self._max = math.inf if max_tokens is None else max_tokens
        else:
            self._max = room if max_tokens is None else min(max_tokens, room)
        self._want_logprobs, self._top = logprobs or top_logprobs > 0, top_logprobs
        self._queue: deque[Piece] = deque()
        self._error: Exception | None = None
        self.tokens: list[int] = []
        guessing = prompt_lookup and engine.can_rewind
        self.lookup = Lookup(prompt.tolist()) if guessing else None
        self.drafted = self.accepted = 0
        self.logprobs: list[float] = []
        self.finish_reason: FinishReason = "length"
        self.done = self.cancelled = self.noting = self._whole = False
        self.consumer: object = None
        self._started = self._prompted = self._latest = 0.0

    # the engine's side

    @property
    def wants_more(self) -> bool:
        """Whether another token would be welcome now."""
        return not (self.done or self.cancelled) and (self._whole or len(self._queue) < _AHEAD)

    @property
    def left(self) -> float:
        """How many tokens may still come."""
        return self._max - len(self.tokens)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.done or self.cancelled

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self._error is not None

    @property
    def news(self) -> bool:
        """Whether whoever iterates need not wait."""
        return bool(self._queue) or self.done or self.cancelled

    def accept(self, logits: np.ndarray) -> int | None:
        """Takes the logits float32 [vocabulary] after the latest token, which may be overwritten
        later; returns the next one, or None at the end. `noting` is for the caller to end."""
        self._latest = time.perf_counter()
        self._prompted = self._prompted or self._latest
        if len(self.tokens) >= self._max or (self._may_finish and self._sampling.finished):
            self.finish("stop" if self._sampling.finished else "length")
            return None
        token = self._sampling.sample(logits.copy() if self._keeps_logits else logits)
        self.noting = True
        if token in self._eog:
            self.finish("stop")
            return None
        logprob, top = None, None
        if self._want_logprobs:
            logprob, top = log_probabilities(logits, token, self._top)
            self.logprobs.append(logprob)
        self._sampling.accept(token)
        text = self._text.push(token)
        if self._stop.watches:
            text = self._stop.push(text)
        piece = Piece(text, token, logprob, top)
        self.tokens.append(token)
        if self.lookup is not None:
            self.lookup.push(token)
        self._queue.append(piece)
        if self._stop.stopped or (self._may_finish and self._sampling.finished):
            self.finish("stop")
        elif len(self.tokens) >= self._max:
            self.finish("length")
        return None if self.done else token

    def finish(self, reason: FinishReason) -> None:
        """Ends it; text that was held back follows."""
        self.finish_reason = reason
        if not self._stop.stopped:
            rest = self._stop.push(self._text.flush())
            rest += "" if self._stop.stopped else self._stop.flush()
            if rest and self.tokens:
                self._queue.append(Piece(rest, self.tokens[-1]))
        self.done = True

    def fail(self, error: Exception) -> None:
        """Ends it with an error, which is raised once the pieces before it were taken."""
        if not self.done:
            self._error, self.done = error, True

    # the consumer's side

    def take(self) -> Piece | None:
        """The next piece; None at the end.

        Raises:
            Error: what ended it.
        """
        if self._queue:
            if len(self._queue) == _AHEAD:
                self._engine.turns.changed()
            return self._queue.popleft()
        if self._error is not None:
            raise self._error
        return None

    def pieces(self) -> Generator[Piece, None, None]:
        """The text, a piece a token. Closing the generator ends the request."""
        self.consumer = threading.get_ident()
        try:
            self.begin()
            while True:
                if not self.news:
                    self.consumer = threading.get_ident()
                    self._engine.turns.wait(self, self._has_news)
                piece = self.take()
                if piece is None:
                    return
                yield piece
        finally:
            self.cancelled = True  # if Ctrl-C comes before the call has begun
            self._engine.cancel(self)

    def _has_news(self) -> bool:
        return bool(self._queue) or self.done or self.cancelled

    def _has_ended(self) -> bool:
        return self.ended

    async def apieces(self) -> AsyncGenerator[Piece, None]:
        """`pieces` for coroutines; another thread computes."""
        import asyncio  # takes longer to import than all of the runner

        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(arrived.set)

        self.consumer = asyncio.current_task()
        try:
            self.begin()
            self._engine.turns.attend(self, notify)
            while True:
                while not self.news:
                    arrived.clear()
                    if not self.news:
                        await arrived.wait()
                piece = self.take()
                if piece is None:
                    return
                yield piece
        finally:
            self.cancelled = True  # as in `pieces`
            self._engine.cancel(self)

    def begin(self) -> None:
        """Hands it to the engine."""
        self._started = time.perf_counter()
        self._engine.submit(self)

    @property
    def usage(self) -> Usage:
        prompted, latest = self._prompted or self._started, self._latest or self._started
        return Usage(
            len(self.prompt),
            len(self.tokens),
            prompted - self._started,
            latest - prompted,
            self.drafted,
            self.accepted,
        )

    def run(self) -> Completion:
        """Generates to the end."""
        self._whole, self.consumer = True, threading.get_ident()
        try:
            self.begin()
            self._engine.turns.wait(self, self._has_ended)
        finally:
            self.cancelled = True  # as in `pieces`
            self._engine.cancel(self)
        text = "".join(iter(self.take, None))
        logprobs = self.logprobs if self._want_logprobs else None
        return Completion(text, self.tokens, self.finish_reason, self.usage, logprobs)


class _NoText:
    """Detokenisation for a model without a vocabulary: no text, only tokens."""

    def push(self, token: int, /) -> str:
        return ""

    def flush(self) -> str:
        return ""
