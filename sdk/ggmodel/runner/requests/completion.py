"""Text of an answer: from tokens to pieces, their delivery to one consumer, and the completion."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from ...concurrency import next_of
from ...platforms.processes import TICK
from ...tokenizer import TextStream, Tokenizer

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event

    import numpy as np
    from typing_extensions import Self

    from .receipt import Proof, Receipt

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Usage:
    """Counts and times of one request.

    Attributes:
        prompt_tokens: positions of the prompt. reused_tokens: cached tokens, those of them that
            prefix caching did not compute again.
        prompt_seconds: until the end of prefill. decode_seconds: from then on.
        queue_seconds: the part of prompt_seconds in which it waited for a free slot.
        drafted: draft tokens of speculative decoding. accepted: those that the answer kept.
        drafts: steps in which they were computed.
    """

    prompt_tokens: int
    completion_tokens: int
    prompt_seconds: float
    decode_seconds: float
    drafted: int = 0
    accepted: int = 0
    reused_tokens: int = 0
    queue_seconds: float = 0.0
    drafts: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Speed of decoding; the first token comes out of the prompt's computation."""
        later = max(0, self.completion_tokens - 1)
        return later / self.decode_seconds if self.decode_seconds else 0.0


class Piece(str):
    """The text that one token completed; may be empty.

    Attributes:
        token: its id; the last token's for text that was held back until the end.
        logprob: log-probability of the token, where asked for.
        top_logprobs: (token, log-probability) of the likeliest, where asked for.
        reasoning: more of the model's reasoning, which the text of a chat leaves out.
    """

    token: int
    logprob: float | None
    top_logprobs: list[tuple[int, float]] | None
    reasoning: str = ""

    def __new__(
        cls,
        text: str,
        token: int,
        logprob: float | None = None,
        top_logprobs: list[tuple[int, float]] | None = None,
    ) -> Piece:
        piece = super().__new__(cls, text)
        piece.token, piece.logprob, piece.top_logprobs = token, logprob, top_logprobs
        return piece

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.token, self.logprob, self.top_logprobs


class Completion(str):
    """Generated text.

    Attributes:
        tokens: ids of all generated tokens, without the end-of-generation token.
        finish_reason: "stop" (end of generation or a stop string) or "length".
        logprobs: log-probability of each token, where asked for, else None.
        top_logprobs: for each token (token, log-probability) of the likeliest, where asked for,
            else None.
        proof: notes what it was computed from, in deterministic mode; lost when it is pickled.
        captured: name of a module → float32 [tokens, width], where asked for; likewise.
    """

    proof: Proof | None = None
    captured: Mapping[str, np.ndarray] | None = None
    tokens: list[int]
    finish_reason: FinishReason
    usage: Usage
    logprobs: list[float] | None
    top_logprobs: list[list[tuple[int, float]]] | None

    def __new__(
        cls,
        text: str,
        tokens: list[int],
        finish_reason: FinishReason,
        usage: Usage,
        logprobs: list[float] | None = None,
        top_logprobs: list[list[tuple[int, float]]] | None = None,
    ) -> Self:
        completion = super().__new__(cls, text)
        completion.tokens, completion.finish_reason = tokens, finish_reason
        completion.usage = usage
        completion.logprobs, completion.top_logprobs = logprobs, top_logprobs
        return completion

    def __getnewargs__(self) -> tuple[Any, ...]:
        options = self.logprobs, self.top_logprobs
        return str(self), self.tokens, self.finish_reason, self.usage, *options

    @property
    def receipt(self) -> Receipt | None:
        """Its origin, to be replayed: model, libraries, options, tokens. None unless the model was
        loaded with `deterministic=True`, and for a prompt with pictures or other items. The first
        one takes a digest of the model: a second or two a gigabyte."""
        return None if self.proof is None else self.proof.receipt(self.tokens)

    @property
    def text(self) -> str:
        """The text as a plain `str`."""
        return str(self)

    def _repr_html_(self) -> str:
        """The text, its end and its speed, as notebooks show them."""
        usage = self.usage
        note = (
            f"{self.finish_reason} · {usage.prompt_tokens} + {usage.completion_tokens} tokens · "
            f"{usage.tokens_per_second:.1f} tokens/s"
        )
        return f"{_paragraph(self)}<small>{note}</small>"


def _paragraph(text: str) -> str:
    from html import escape  # slow

    return f'<div style="white-space: pre-wrap">{escape(text)}</div>'


class AnswerText(TextStream):
    """The text of tokens, held back where it is incomplete or may begin a stop string.

    Args:
        after: the last token of the prompt, None if that is an image.

    Attributes:
        stop: the stop string that came, or None.
    """

    def __init__(self, tokenizer: Tokenizer, after: int | None, stops: Iterable[str]):
        strip = tokenizer.hides_space and (after is None or tokenizer.starts_text(after))
        super().__init__(tokenizer, skip_special=False, strip=strip)
        self._stops, self._held = [s for s in stops if s], ""
        self.stop: str | None = None

    def push(self, id: int) -> str:
        """The text that can be handed out after this token."""
        text = super().push(id)
        return self._watched(text) if self._stops else text

    def flush(self) -> str:
        """The rest, at the end of the answer; nothing behind a stop string."""
        if self.stop is not None:
            return ""
        rest = super().flush()
        if not self._stops:
            return rest
        rest = self._watched(rest) + self._held
        self._held = ""
        return rest

    def _watched(self, text: str) -> str:
        """The text up to a stop string or its beginning, with what was held back before."""
        held = self._held + text
        places = [(i, s) for s in self._stops if (i := held.find(s)) >= 0]
        if places:
            first, self.stop = min(places, key=lambda place: place[0])
            self._held = ""
            return held[:first]
        keep = max(_overlap(held, s) for s in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


# Pieces computed ahead of the consumer, and how few of them are left when the engine is woken.
AHEAD, _LOW = 8, 4


class Delivery:
    """A queue of pieces; None ends it.

    Args:
        wake: has the engine look whether it can go on.

    Attributes:
        whole: nothing limits the queue: the consumer waits for the end, or must not hold up others.
        ended: set when `end` was called.
        at_end: called by `end`, or None.
        empty: whether `get` would wait. size: how many pieces wait to be taken.
    """

    def __init__(self, wake: Callable[[], object]):
        self._wake = wake
        self._queue: SimpleQueue[Piece | None] = SimpleQueue()
        self.empty, self.size = self._queue.empty, self._queue.qsize
        self._notify: Callable[[], object] | None = None
        self.at_end: Callable[[], object] | None = None
        self.ended, self.whole = threading.Event(), False

    # in the engine's thread

    def put(self, piece: Piece | None) -> None:
        """Adds a piece."""
        self._queue.put(piece)
        if self._notify is not None:  # `notify`, which a token need not call
            self._notify()

    def notify(self) -> None:
        """Has the consumer look."""
        if self._notify is not None:
            self._notify()

    def end(self) -> None:
        """Nothing more comes; idempotent."""
        if not self.ended.is_set():
            self.ended.set()
            self.put(None)
            if self.at_end is not None:
                self.at_end()

    # by the consumer

    def get(self) -> Piece | None:
        """The next piece, as soon as there is one; None at the end."""
        return self._taken(self._queue.get() if TICK is None else next_of(self._queue))

    async def aget(self) -> Piece | None:
        """`get` for coroutines, all in one event loop."""
        import asyncio  # takes longer to import than all of the runner

        while True:
            with suppress(Empty):
                return self._taken(self._queue.get_nowait())
            if self._notify is None:
                self._notify = self._notifier(asyncio.get_running_loop(), asyncio.Event())
                continue  # a piece may have come before
            await self._arrived.wait()
            self._arrived.clear()

    def _notifier(self, loop: AbstractEventLoop, arrived: Event) -> Callable[[], None]:
        self._arrived = arrived

        def notify() -> None:
            if not arrived.is_set():
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(arrived.set)

        return notify

    def watched(self, came: Callable[[], object]) -> None:
        """Has `came` called, in the engine's thread, with each piece and at the end. Before the
        first piece only."""
        self._notify = came

    def waiting(self, most: int) -> tuple[list[Piece], bool]:
        """The pieces that have come, at most so many, and whether the end has."""
        pieces: list[Piece] = []
        with suppress(Empty):
            while len(pieces) < most:
                piece = self._taken(self._queue.get_nowait())
                if piece is None:
                    return pieces, True
                pieces.append(piece)
        return pieces, False

    def _taken(self, piece: Piece | None) -> Piece | None:
        if self._queue.qsize() == _LOW:
            self._wake()  # the engine may have stopped at AHEAD
        return piece
