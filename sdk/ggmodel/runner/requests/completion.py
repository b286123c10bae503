"""Results of generation: strings that know their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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
    """

    prompt_tokens: int
    completion_tokens: int
    prompt_seconds: float
    decode_seconds: float
    drafted: int = 0
    accepted: int = 0
    reused_tokens: int = 0
    queue_seconds: float = 0.0

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
    """

    token: int
    logprob: float | None
    top_logprobs: list[tuple[int, float]] | None

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
    """

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
    ) -> Completion:
        completion = super().__new__(cls, text)
        completion.tokens, completion.finish_reason = tokens, finish_reason
        completion.usage = usage
        completion.logprobs, completion.top_logprobs = logprobs, top_logprobs
        return completion

    def __getnewargs__(self) -> tuple[Any, ...]:
        options = self.logprobs, self.top_logprobs
        return str(self), self.tokens, self.finish_reason, self.usage, *options

    @property
    def text(self) -> str:
        """The text as a plain `str`."""
        return str(self)
