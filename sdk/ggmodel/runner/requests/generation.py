"""Generation: samples tokens, watches for the end, hands out text to threads and coroutines."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ...concurrency import until_set
from ...errors import Cancelled, ConfigError, GraphError, TokenizerError
from ...resources import as_error
from ..engine.adapters import Strengths
from ..engine.engine import Engine
from ..engine.lookup import Lookup
from ..engine.probes import Probe
from ..sampling import Sampler, Sampling, log_probabilities
from ..sampling.selection import most_likely
from .completion import AHEAD, AnswerText, Completion, Delivery, FinishReason, Piece, Usage
from .receipt import Proof

if TYPE_CHECKING:
    from typing_extensions import Self

    from ...tokenizer import Tokenizer
    from .grammar import Grammar


def named(adapters: Strengths) -> dict[str, Any]:
    """The adapters of a request for its receipt, none without."""
    named = {one.name: [one.digest, strength] for one, strength in adapters}
    return {"adapters": named} if named else {}


class Generation:
    """One request: `run()` it, or iterate over `pieces()`; `usage` is complete in the end.

    The engine's thread calls `accept` with each token's logits and puts pieces into a queue, from
    which the consumer takes them.

    Args:
        prompt: int32 [n], checked.
        max_tokens: None goes on to the end of the context.
        logprobs: return the log-probability of each token.
        top_logprobs: return those of this many most likely tokens, too.
        post_sampling_probs: of the distribution that is drawn from, not of the model's.
        grammar: constrains the text.
        context_shift: when the context is full, drop its older half rather than end.
        num_keep: tokens at the beginning that are never dropped.
        prompt_lookup: draft repetitions of prompt and answer; see `engine.request`.
        probe: what it captures and changes in the model; None for nothing.
        adapters: those to compute with.

    Attributes:
        done: nothing more will come. failed: because of an error. cancelled: no more is wanted.
        consumer: the thread or task that takes the pieces.
        slot: the number of the one that it wants; None for any.
        lookup: drafts how the answer goes on; None without prompt lookup.
        ended_by: the token that ended it, which is no part of the text; None for another end.
        stop: the stop string that ended it, or None.
        seated: when it got a slot, by `time.perf_counter`; 0 before.
        reused: inputs of the prompt that were computed for an earlier request.
        drafts, drafted, accepted: steps with draft tokens, draft tokens computed, and those that
            were accepted.
        watches_prefill: see `watch`.
    """

    consumer: object = None
    slot: int | None = None
    _error: BaseException | None = None

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
        post_sampling_probs: bool = False,
        grammar: Grammar | None = None,
        context_shift: bool = False,
        num_keep: int = 0,
        prompt_lookup: bool = False,
        probe: Probe | None = None,
        adapters: Strengths = (),
    ):
        changing = {"context_shift": context_shift, "num_keep": num_keep, "grammar": bool(grammar)}
        self._proof = Proof.of(engine, sampler, prompt, changing | named(adapters), probe)
        if grammar is not None and tokenizer is None:
            raise TokenizerError("a grammar needs a vocabulary, and this file has none")
        if grammar is not None and context_shift and max_tokens is None:
            raise ConfigError("a grammar may have no end: with context_shift it needs max_tokens")

        self.prompt, self.context_shift, self.num_keep = prompt, context_shift, num_keep
        self._engine, self._tokenizer = engine, tokenizer
        self.probe, self.adapters = probe, adapters
        constraint = None
        if grammar is not None and tokenizer is not None:
            constraint = grammar.begin(tokenizer)
        tokens = prompt[prompt >= 0].tolist()  # without images
        self._sampling = sampler.begin(tokens, constraint=constraint)
        self._keeps_logits = type(sampler) is not Sampler  # a user's sampler may
        self._may_finish = constraint is not None or self._keeps_logits
        self._eog = tokenizer.eog if tokenizer is not None else frozenset[int]()
        self._text = None
        if tokenizer is not None:
            after = int(prompt[-1]) if prompt[-1] >= 0 else None
            self._text = AnswerText(tokenizer, after, stop)
        kind = engine.model.prompt_item
        self._asked = engine.inputs.tokens(prompt.tolist(), kind) if kind else len(prompt)
        room = math.inf if context_shift else engine.context_length - len(prompt)
        self._max = room if max_tokens is None else min(max_tokens, room)
        self._want_logprobs, self._top = logprobs or top_logprobs > 0, top_logprobs
        drawn = self._sampling.log_probabilities
        self._likely = drawn if post_sampling_probs else log_probabilities
        self._delivery = Delivery(engine.wake)
        self.tokens: list[int] = []
        self.lookup = Lookup(prompt.tolist()) if prompt_lookup else None
        self.reused = self.drafts = self.drafted = self.accepted = 0
        self.logprobs: list[float] = []
        self.top_logprobs: list[Any] = []
        self.finish_reason: FinishReason = "length"
        self.ended_by: int | None = None
        self.stop: str | None = None
        self.done = self.cancelled = self._taken_all = self.watches_prefill = False
        self._prefills: deque[tuple[int, float]] = deque()
        self._started = self._prompted = self._latest = self.seated = 0.0

    # called in the engine's thread

    @property
    def wants_more(self) -> bool:
        """Whether another token is welcome now."""
        delivery = self._delivery
        room = delivery.whole or delivery.size() < AHEAD
        return room and not (self.done or self.cancelled)

    @property
    def left(self) -> float:
        """How many tokens may still come."""
        return self._max - len(self.tokens)

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self._error is not None

    def prefilled(self, inputs: int) -> None:
        """Notes how many inputs of the prompt are computed, and when."""
        self.watches_prefill = inputs < len(self.prompt)
        self._prefills.append((inputs, time.perf_counter() - self.seated))
        self._delivery.notify()

    def accept(self, logits: np.ndarray) -> int | None:
        """Takes the logits float32 [vocabulary] after the latest token, which the next step
        overwrites. Returns the next token, or None at the end."""
        self._latest = time.perf_counter()
        self._prompted = self._prompted or self._latest
        if len(self.tokens) >= self._max or (self._may_finish and self._sampling.finished):
            self.finish("stop" if self._sampling.finished else "length")
            return None
        token = self._sampling.sample(logits.copy() if self._keeps_logits else logits)
        if token in self._eog:
            self.ended_by = token
            self.finish("stop")
            return None
        logprob, top = None, None
        if self._want_logprobs:
            logprob, top = self._likely(logits, token, self._top)
            self.logprobs.append(logprob)
            self.top_logprobs.append(top)
        self._sampling.accept(token)
        text = ""
        if self._text is not None:
            text, self.stop = self._text.push(token), self._text.stop
        self.tokens.append(token)
        if self._proof is not None:
            self._proof.add(logits)
        if self.lookup is not None:
            self.lookup.push(token)
        self._delivery.put(Piece(text, token, logprob, top))
        if self.stop is not None or (self._may_finish and self._sampling.finished):
            self.finish("stop")
        elif len(self.tokens) >= self._max:
            self.finish("length")
        return None if self.done else token

    def foresee(self) -> Callable[[np.ndarray], int | None]:
        """A function that chooses from logits as `accept` will from equal ones, token by token,
        without effect on this request; None where the answer ends. A sampler of others, which may
        have a state that cannot be copied, is taken for a greedy one."""
        if type(self._sampling) is not Sampling or self._keeps_logits:
            return most_likely
        sampling, ends, may_finish = self._sampling.copy(), self._eog, self._may_finish

        def choose(logits: np.ndarray) -> int | None:
            if may_finish and sampling.finished:
                return None
            token = sampling.sample(logits)
            if token in ends:
                return None
            sampling.accept(token)
            return token

        return choose

    def finish(self, reason: FinishReason) -> None:
        """Ends it; text that was held back follows."""
        self.finish_reason = reason
        rest = ""
        if self._text is not None:
            rest, self.stop = self._text.flush(), self._text.stop
        if rest and self.tokens:
            self._delivery.put(Piece(rest, self.tokens[-1]))
        self.done = True

    def fail(self, error: BaseException) -> None:
        """Ends it with an error, which is raised once the pieces before it were taken."""
        if not self.done:
            self._error, self.done = as_error(error), True

    def release(self) -> None:
        """Tells the consumer that it is done; its slot is free by now."""
        self._delivery.end()

    # called by the consumer

    def begin(self) -> None:
        """Hands it to the engine, once; `pieces` and `run` do so, too."""
        if not self._started:
            self._started = time.perf_counter()
            self._engine.submit(self)

    def cancel(self) -> None:
        """Ends it after the step under way, from any thread."""
        self.cancelled = True  # even if Ctrl-C comes again as the call begins
        self._engine.cancel(self)

    def _claim(self, consumer: object) -> None:
        """Notes who takes the pieces, which one consumer does, once."""
        if self.consumer is not None:
            raise GraphError("a request is run or iterated over once; make another one")
        self.consumer = consumer

    def pieces(self) -> Generator[Piece, None, None]:
        """The text, a piece a token. Closing the generator ends the request.

        Raises:
            Error: the error that ended it.
        """
        self._claim(threading.get_ident())
        try:
            self.begin()
            while True:
                if self._delivery.empty():
                    self.consumer = threading.get_ident()
                    if self._engine.forked:
                        self._engine.check_process()
                piece = self._delivery.get()
                if piece is None:
                    return self._raise_error()
                yield piece
        finally:
            self.cancel()

    async def apieces(self) -> AsyncGenerator[Piece, None]:
        """`pieces` for coroutines."""
        from asyncio import current_task  # takes longer to import than all of the runner

        # By its id: a reference would keep the task alive, and so its stream and its slot.
        self._claim(("task", id(current_task())))
        try:
            self.begin()
            while (piece := await self._delivery.aget()) is not None:
                yield piece
            self._raise_error()
        finally:
            self.cancel()

    def watch(self, came: Callable[[], object], prefill: bool = False) -> None:
        """Begins; `came` is called, in the engine's thread, when `take` has something. For a
        consumer of many requests, who calls `cancel` in the end. An answer that fits the context
        does not wait for its consumer: it would keep its slot from others.

        Args:
            prefill: `take_prefills` has something, too, when the request got its slot and after
                each step of its prefill.
        """
        self.watches_prefill = prefill
        self._claim(("watched", id(self)))
        self._delivery.whole = self._max <= self._engine.context_length
        self._delivery.watched(came)
        self.begin()

    def finish_with(self, logits: np.ndarray, seconds: float) -> None:
        """Ends a request for one token at most by the logits float32 [vocabulary] after its prompt,
        which its owner has computed, in so many seconds. `take` then has the pieces."""
        self._claim(("watched", id(self)))
        self._started = time.perf_counter() - seconds
        self.accept(logits)
        self.release()

    def take_prefills(self) -> list[tuple[int, float]]:
        """How many inputs of the prompt were computed, each time with the seconds since the request
        got its slot; the first ones were computed for earlier requests."""
        return [self._prefills.popleft() for _ in range(len(self._prefills))]

    def take(self, most: int) -> list[Piece] | None:
        """The pieces that have come, at most so many; None at the end. Never waits.

        Raises:
            Error: the error that ended it, once the pieces before it were taken.
        """
        if self._taken_all:
            self._raise_error()
            return None
        pieces, self._taken_all = self._delivery.waiting(most)
        return pieces if pieces or not self._taken_all else self.take(most)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def run(self) -> Completion:
        """Generates to the end; raises as `result`."""
        self._claim(threading.get_ident())
        try:
            self._begin_whole()
            until_set(self._delivery.ended)
            return self.result()
        finally:
            self.cancel()

    def start(self, ended: Callable[[], object] | None = None) -> None:
        """Begins to generate to the end; `ended` is called, in the engine's thread, when `result`
        is there."""
        self._claim(threading.get_ident())
        self._delivery.at_end = ended
        self._begin_whole()

    def _begin_whole(self) -> None:
        self._delivery.whole = True
        self.begin()
        self._engine.wake()  # if it had begun before

    def result(self) -> Completion:
        """The whole answer of a request that has ended.

        Raises:
            Error: the error that ended it; Cancelled if it was cancelled before its end.
        """
        if not self.done:
            raise Cancelled("the request was cancelled before its end")
        pieces = list(iter(self._delivery.get, None))
        self._raise_error()
        return self.completion(pieces)

    @property
    def ending(self) -> str:
        """The text of the token that ended it; "" for another end."""
        if self._tokenizer is None or self.ended_by is None:
            return ""
        return self._tokenizer.token_bytes(self.ended_by).decode("utf-8", "replace")

    def completion(self, pieces: Iterable[Piece]) -> Completion:
        """The answer whose pieces these are."""
        logprobs = self.logprobs if self._want_logprobs else None
        top = self.top_logprobs if self._top else None
        done = Completion(
            "".join(pieces), self.tokens, self.finish_reason, self.usage, logprobs, top
        )
        done.proof = self._proof
        if self.probe is not None and self.probe.captures:
            done.captured = self.probe.captured
        return done

    @property
    def usage(self) -> Usage:
        prompted, latest = self._prompted or self._started, self._latest or self._started
        return Usage(
            self._asked,
            len(self.tokens),
            prompted - self._started,
            latest - prompted,
            self.drafted,
            self.accepted,
            self.reused,
            max(0.0, self.seated - self._started),
            self.drafts,
        )


class _Answer:
    """A request whose pieces are being taken."""

    def __init__(self, request: Generation):
        self._request = request
        self._complete = self._cut_off = False

    @property
    def finish_reason(self) -> FinishReason | None:
        """ "stop" or "length" after the last piece, None until then, and where it was cut off."""
        return self._request.finish_reason if self._complete else None

    @property
    def usage(self) -> Usage:
        """Counts and times so far; of the whole request after the last piece."""
        return self._request.usage

    def completion(self, pieces: Sequence[Piece]) -> Completion:
        """The pieces as a whole."""
        return self._request.completion(pieces)


class Stream(_Answer, Generator[Piece, None, None]):
    """The pieces of an answer as they come: a generator, and a context manager that closes it.

    Closing it, or dropping it before its end, cancels the request and frees its sequence.
    """

    def __init__(self, request: Generation):
        super().__init__(request)
        self._pieces = request.pieces()

    def send(self, value: None = None, /) -> Piece:
        """The next piece."""
        try:
            return self._pieces.send(value)
        except StopIteration:
            self._complete = not self._cut_off
            raise
        except BaseException as error:
            self._cut_off = True
            raise as_error(error)  # noqa: B904 (it has its cause)

    def throw(self, *error: Any) -> Piece:
        """Ends the request with an error."""
        return self._pieces.throw(*error)

    def close(self) -> None:
        """Cancels the request unless it is complete; idempotent. Any thread may close it."""
        self._cut_off = not self._complete
        self._request.cancel()
        with suppress(ValueError):  # another thread waits for a piece, and gets the end
            self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncStream(_Answer, AsyncGenerator[Piece, None]):
    """`Stream` for coroutines."""

    def __init__(self, request: Generation):
        super().__init__(request)
        self._pieces = request.apieces()

    async def asend(self, value: None = None, /) -> Piece:
        """The next piece."""
        try:
            return await self._pieces.asend(value)
        except StopAsyncIteration:
            self._complete = not self._cut_off
            raise
        except BaseException as error:
            self._cut_off = True
            raise as_error(error)  # noqa: B904 (it has its cause)

    async def athrow(self, *error: Any) -> Piece:
        """Ends the request with an error."""
        return await self._pieces.athrow(*error)

    async def aclose(self) -> None:
        """Cancels the request unless it is complete; idempotent."""
        self._cut_off = not self._complete
        await self._pieces.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_request"):  # its loop may be closed, and ends no generator then
            self._request.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
