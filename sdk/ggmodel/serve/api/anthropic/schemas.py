"""Schemas of Anthropic's API: answers, events, counts, errors."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ...endpoint import ErrorFormat, named_event
from ...errors import Problem
from ...monitoring import request_id
from ...requests import Finished

NO_THREADS = "thread_unsupported_request"


class Details(Struct):
    error_code: str


class Failed(Struct, omit_defaults=True):
    type: str
    message: str
    details: Details | None = None


class ErrorAnswer(Struct, tag="error"):
    """An error, as Anthropic puts it."""

    error: Failed
    request_id: str | None


class Usage(Struct):
    """Tokens of the prompt; those that were in the cache count apart."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(Struct, tag="text"):
    text: str


class ThinkingBlock(Struct, tag="thinking"):
    thinking: str
    signature: str = ""


class ToolUseBlock(Struct, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class Stopped(Struct):
    """The reason why an answer ended; none at its beginning."""

    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None


class MessageAnswer(Stopped, tag="message", kw_only=True):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    usage: Usage


class TokenCount(Struct):
    input_tokens: int


class MessageStart(Struct, tag="message_start"):
    message: MessageAnswer


class Ping(Struct, tag="ping"):
    pass


class ContentBlockStart(Struct, tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextDelta(Struct, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, tag="signature_delta"):
    signature: str = ""


class InputJsonDelta(Struct, tag="input_json_delta"):
    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockDelta(Struct, tag="content_block_delta"):
    index: int
    delta: BlockDelta


class ContentBlockStop(Struct, tag="content_block_stop"):
    index: int


class MessageDelta(Struct, tag="message_delta"):
    delta: Stopped
    usage: Usage


class MessageStop(Struct, tag="message_stop"):
    pass


MessageEvent = (
    MessageStart
    | Ping
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _error(error: Problem) -> ErrorAnswer:
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    if error.tokens:  # in the words by which its clients know that they must shorten it
        text = f"prompt is too long: {error.tokens} tokens > {error.context} maximum"
        return ErrorAnswer(Failed(kind, text), request_id())
    text = "; ".join(f"{name}: Extra inputs are not permitted" for name in error.fields)
    details = Details(NO_THREADS) if error.code == NO_THREADS else None
    failed = Failed(_TYPES.get(error.status, kind), text or error.message, details)
    return ErrorAnswer(failed, request_id())


ANTHROPIC = ErrorFormat(ErrorAnswer, _error, named_event)


def usage(finished: Finished) -> Usage:
    """Counts of an answer."""
    prompt, reused = finished.prompt_tokens, finished.reused_tokens
    return Usage(prompt - reused, 0, reused, finished.completion_tokens)
