"""Errors of requests: which status each has. APIs give them their own shape."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ..errors import (
    Busy,
    Cancelled,
    ComputeError,
    DeviceLost,
    DownloadError,
    Error,
    KvCacheFull,
    LoadError,
    ModelNotFound,
    NativeError,
    OutOfMemory,
    PromptTooLong,
    Unsupported,
)

logger = logging.getLogger("ggmodel.serve")

_LONGEST = 2000  # characters of a message, which may quote a value of the request
# Arguments and functions of Python mean nothing to those who speak HTTP.
_PYTHON = re.compile(r"\b[a-z_]+=(\s|[A-Z\[{(]|$)|\b[a-z_]+\(")
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_TOO_LONG = "context_length_exceeded"  # OpenAI's
# The first that fits; a file that cannot be loaded is no fault of the request.
_STATUS: tuple[tuple[type[Error], int, str], ...] = (
    (ModelNotFound, 404, "model_not_found"),
    (Busy, 429, "busy"),
    (Cancelled, 503, "unloaded"),
    (DeviceLost, 503, "runner_lost"),
    (KvCacheFull, 503, "out_of_memory"),
    (OutOfMemory, 503, "out_of_memory"),
    (DownloadError, 502, "download_failed"),
    (LoadError, 500, "load_failed"),
    (NativeError, 500, "native_error"),
    (ComputeError, 500, "compute_error"),
    (Unsupported, 400, "unsupported"),
    (PromptTooLong, 400, _TOO_LONG),
)
_WAIT = {429: 1, 503: 2}  # seconds


class Refused(Error):
    """A request that the server itself refuses.

    Attributes:
        status: of HTTP. param: the field that is wrong. code: a word for programs.
        allowed: the methods of HTTP that would do, where the request's does not.
        fields: of the request, that are unknown.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        allowed: Sequence[str] = (),
        fields: Sequence[str] = (),
    ):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.allowed, self.fields = tuple(allowed), tuple(fields)


@dataclass(frozen=True)
class Problem:
    """An error as a client sees it.

    Attributes:
        tokens, context: of a prompt that is too long; see `PromptTooLong`.
        fields: see `Refused`.
        retry_after: seconds after which the request may succeed; None for never.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    allowed: tuple[str, ...] = ()
    tokens: int = 0
    context: int = 0
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", _cut(self.message))

    @property
    def retry_after(self) -> int | None:
        return _WAIT.get(self.status)


def problem_of(error: BaseException, remedy: str = "") -> Problem:
    """The status of an error, and the text for its user. Bugs are logged, and not told.

    Args:
        remedy: what the API has for prompts that are too long; "" for nothing.
    """
    if isinstance(error, Refused):
        shown = error.status, str(error), error.param, error.code, error.allowed
        return Problem(*shown, fields=error.fields)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):  # one from Python 3.11 on
        return Problem(504, "the request took longer than this server allows", code="timeout")
    if not isinstance(error, Error):
        logger.error("a bug of the server", exc_info=error)
        return Problem(500, "the server failed; see its log", code="internal_error")
    if isinstance(error, PromptTooLong) and error.tokens:
        return _too_long(error, remedy)
    text = _without_python(str(error))
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return Problem(status, text, code=code)
    return Problem(400, text, code=_code(error))


def _too_long(error: PromptTooLong, remedy: str) -> Problem:
    tokens, context = error.tokens, error.context
    # llama-server's words, by which agents know that they must shorten a conversation.
    text = f"the prompt has {tokens} tokens, which exceeds the available context size of {context}"
    ways = [remedy] if remedy else []
    ways = ["shorten it", *ways, "or have the server load the model with a larger --context-length"]
    message = f"{text}; {', '.join(ways)}"
    return Problem(400, message, code=_TOO_LONG, tokens=tokens, context=context)


def _without_python(text: str) -> str:
    """A message without advice that names arguments or functions of Python."""
    first, *others = text.split("; ")
    return "; ".join([first, *(one for one in others if not _PYTHON.search(one))])


def _cut(text: str) -> str:
    """The beginning and the end of a text."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"


def _code(error: Error) -> str | None:
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__)
    return None if type(error) is Error else words.lower()


def wrong_body(error: Exception) -> Refused:
    """A body that is no JSON, or has a field of a wrong type; names the field."""
    if isinstance(error, RecursionError):
        return Refused("the JSON of the request is nested too deeply")
    text = _cut(str(error))
    place = _PLACE.search(text)
    if not isinstance(error, msgspec.ValidationError):
        return Refused(f"the request is no JSON: {text}")
    param = "" if place is None else place[1].replace("[...]", "[]")
    missing = re.search(r"missing required field `(\w+)`", text)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
    message = "Field required" if missing else text if place is None else text[: place.start()]
    return Refused(f"{param or 'the request'}: {message}", param=param or None)
