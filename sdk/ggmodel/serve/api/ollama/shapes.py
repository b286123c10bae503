"""Parts that several answers have: errors, counts and times, details of models."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

import msgspec

from ...endpoint import Shape
from ...errors import Problem
from ...pool import Listed
from ...requests import Ended, Token
from .answered import ErrorAnswer

VERSION = "0.33.0"
"""The version of Ollama whose API this is; programs ask for one."""

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_encode = msgspec.json.Encoder().encode


class Ollama(Shape):
    """Errors as Ollama puts them."""

    described = ErrorAnswer

    def refusal(self, error: Problem) -> Any:
        return {"error": error.message}

    def interruption(self, error: Problem) -> bytes:
        return line(self.refusal(error))


OLLAMA = Ollama()
LINES = "application/x-ndjson"


def line(value: Any) -> bytes:
    """A line of a stream."""
    return _encode(value) + b"\n"


def now() -> str:
    """The time, as RFC 3339 writes it."""
    return moment(time.time())


def moment(seconds: float) -> str:
    """A time in seconds since 1970, as RFC 3339 writes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


class Clock:
    """Times of one request, in nanoseconds as Ollama tells them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._loaded = self._began

    def loaded(self) -> None:
        """The model is there."""
        self._loaded = time.monotonic()

    def so_far(self) -> dict[str, int]:
        """From the beginning to now, and until the model was there."""
        return {
            "total_duration": _nanoseconds(time.monotonic() - self._began),
            "load_duration": _nanoseconds(self._loaded - self._began),
        }

    def of(self, ended: Ended) -> dict[str, int]:
        """Times and counts of a whole answer."""
        return {
            **self.so_far(),
            "prompt_eval_count": ended.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(ended.prompt_seconds),
            "eval_count": ended.completion_tokens,
            "eval_duration": _nanoseconds(ended.decode_seconds),
        }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def logprobs(tokens: list[Token]) -> list[dict[str, Any]]:
    """Log-probabilities of tokens."""
    return [{**_entry(one), "top_logprobs": [_entry(top) for top in one.top]} for one in tokens]


def _entry(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def details(model: Listed) -> dict[str, Any]:
    """Family, size and type of a model."""
    known = model.details
    family = str(known.get("architecture", ""))
    return {
        "parent_model": "",
        "format": str(known.get("format", "gguf")),
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _rounded(int(known.get("parameters", 0))),
        "quantization_level": str(known.get("quantization", "")),
    }


def _rounded(count: int) -> str:
    """A number of parameters, such as "7.6B"."""
    for unit, letter in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f}{letter}"
    return str(count)
