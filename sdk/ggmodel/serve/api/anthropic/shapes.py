"""Parts that several answers have: errors, counts, reasons."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...endpoint import Shape
from ...errors import Problem
from ...requests import Ended
from ...streaming import event
from .answered import ErrorAnswer

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Anthropic(Shape):
    """Errors as Anthropic puts them."""

    described = ErrorAnswer

    def refusal(self, error: Problem) -> Any:
        kind = "invalid_request_error" if error.status < 500 else "api_error"
        found = {"type": _TYPES.get(error.status, kind), "message": error.message}
        return {"type": "error", "error": found}

    def interruption(self, error: Problem) -> bytes:
        return event(self.refusal(error), "error")


ANTHROPIC = Anthropic()


def usage(ended: Ended) -> dict[str, int]:
    """Counts of an answer."""
    return counts(ended.prompt_tokens, ended.reused_tokens, ended.completion_tokens)


def counts(prompt: int, reused: int, answer: int) -> dict[str, int]:
    """Counts of tokens; those of the prompt that were in the cache count apart."""
    return {
        "input_tokens": prompt - reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reused,
        "output_tokens": answer,
    }


def stopped(ended: Ended, called: bool, stops: Collection[str]) -> dict[str, str | None]:
    """Why an answer ended.

    Args:
        called: it called a tool.
        stops: the request's own stop strings.
    """
    sequence = ended.stop if ended.stop in stops else None
    if ended.reason == "length":
        reason = "max_tokens"
    elif called:
        reason = "tool_use"
    else:
        reason = "end_turn" if sequence is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": sequence}
