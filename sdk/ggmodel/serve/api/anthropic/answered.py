"""The JSON of Anthropic's answers, for /openapi.json."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Failed(Struct):
    type: str
    message: str


class ErrorAnswer(Struct):
    """An error, as Anthropic puts it."""

    type: Literal["error"]
    error: Failed


class Usage(Struct):
    """Tokens of the prompt; those that were in the cache count apart."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnswerBlock(Struct, kw_only=True):
    """A thought, a text or a call."""

    type: Literal["thinking", "text", "tool_use"]
    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}


class MessageAnswer(Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: Usage


class TokenCount(Struct):
    input_tokens: int
