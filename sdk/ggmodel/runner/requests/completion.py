"""What generation gives back: strings that know their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Usage:
    """Counts and times of one request.

    Attributes:
        prompt_seconds: until the prompt was computed. decode_seconds: from then on.
        drafted: tokens that were guessed ahead. accepted: those of them that came true.
    """

    prompt_tokens: int
    completion_tokens: int
    prompt_seconds: float
    decode_seconds: float
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Of decoding; the first token comes out of the prompt's computation."""
        later = max(0, self.completion_tokens - 1)
        return later / self.decode_seconds if self.decode_seconds else 0.0


class Piece(str):
    """The text that one token completed; may be empty.

    Attributes:
        token: its id; for text held back until the end, the last token's.
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


class Completion(str):
    """Generated text.

    Attributes:
        tokens: ids of all generated tokens, without the end-of-generation token.
        finish_reason: "stop" (end of generation or a stop string) or "length".
        logprobs: log-probability of each token, where asked for, else None.
    """

    tokens: list[int]
    finish_reason: FinishReason
    usage: Usage
    logprobs: list[float] | None

    def __new__(
        cls,
        text: str,
        tokens: list[int],
        finish_reason: FinishReason,
        usage: Usage,
        logprobs: list[float] | None = None,
    ) -> Completion:
        completion = super().__new__(cls, text)
        completion.tokens, completion.finish_reason = tokens, finish_reason
        completion.usage, completion.logprobs = usage, logprobs
        return completion
