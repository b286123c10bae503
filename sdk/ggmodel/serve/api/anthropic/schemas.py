"""Schemas of Anthropic's API: messages as runners take them, answers, events, counts, errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from ...chat_requests import Message, Part, check_count, item_part, simplified, text_part, tool_call
from ...endpoint import ErrorFormat, named_event
from ...errors import Problem, Refused
from ...media import Fetch, from_base64
from ...monitoring import request_id
from ...requests import Finished


class Failed(Struct):
    type: str
    message: str


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
    return ErrorAnswer(Failed(_TYPES.get(error.status, kind), error.message), request_id())


ANTHROPIC = ErrorFormat(ErrorAnswer, _error, named_event)


def usage(finished: Finished) -> Usage:
    """Counts of an answer."""
    prompt, reused = finished.prompt_tokens, finished.reused_tokens
    return Usage(prompt - reused, 0, reused, finished.completion_tokens)


Block = dict[str, Any]


_ROLES = ("user", "assistant", "system")


class InputMessage(Struct):
    """A message of a request."""

    role: str
    content: str | list[Block]


async def converted(
    system: str | list[Block] | None, messages: Sequence[InputMessage], fetch: Fetch
) -> list[Message]:
    """The messages of a conversation, images as bytes. Results of tools become messages of their
    own.

    Raises:
        Refused: there are too many, a block is wrong, or the URL of an image not allowed.
    """
    check_count(messages)
    check_count(system if isinstance(system, list) else [], "system")
    conversation: list[Message] = []
    if system:
        conversation.append({"role": "system", "content": await _content(system, "system", fetch)})
    for i, message in enumerate(messages):
        where = f"messages[{i}].content"
        if message.role not in _ROLES:
            at = f"messages[{i}].role"
            roles = ", ".join(_ROLES)
            raise Refused(f"{at}: {message.role!a:.60} is none of {roles}", param=at)
        if isinstance(message.content, str):
            conversation.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            conversation.append(await _assistant(message.content, where, fetch))
        else:
            conversation += await _user(message.role, message.content, where, fetch)
    return conversation


async def _user(role: str, blocks: list[Block], where: str, fetch: Fetch) -> list[Message]:
    messages: list[Message] = []
    parts: list[Part] = []
    for i, block in enumerate(blocks):
        place = f"{where}[{i}]"
        if block.get("type") == "tool_result":
            id = _text(block, "tool_use_id", place)
            content = await _content(block.get("content") or "", f"{place}.content", fetch)
            messages.append({"role": "tool", "tool_call_id": id, "content": content})
        else:
            parts.append(await _part(block, place, fetch))
    if parts or not messages:
        messages.append({"role": role, "content": simplified(parts)})
    return messages


async def _assistant(blocks: list[Block], where: str, fetch: Fetch) -> Message:
    parts: list[Part] = []
    calls: list[Any] = []
    thoughts: list[str] = []
    for i, block in enumerate(blocks):
        place, kind = f"{where}[{i}]", block.get("type")
        if kind == "tool_use":
            id, name = _text(block, "id", place), _text(block, "name", place)
            calls.append(tool_call(id, name, block.get("input")))
        elif kind == "thinking":
            thoughts.append(_text(block, "thinking", place))
        elif kind != "redacted_thinking":  # nobody here can read it
            parts.append(await _part(block, place, fetch))
    message: Message = {"role": "assistant"}
    if parts or not calls:
        message["content"] = simplified(parts)
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message


async def _content(content: Any, where: str, fetch: Fetch) -> str | list[Part]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise Refused(f"{where}: expected a text or a list of blocks", param=where)
    return simplified([await _part(one, f"{where}[{i}]", fetch) for i, one in enumerate(content)])


async def _part(block: Block, where: str, fetch: Fetch) -> Part:
    kind = block.get("type")
    if kind == "text":
        return text_part(_text(block, "text", where))
    source = block.get("source")
    if kind in ("image", "document"):
        where = f"{where}.source"
        if not isinstance(source, dict):
            raise Refused(f"{where}: is missing", param=where)
        if kind == "image":
            return item_part("image", await _image(source, where, fetch))
        if source.get("type") == "text":
            return text_part(_text(source, "data", where))
        raise Refused(f"{where}.type: documents are plain text here", param=f"{where}.type")
    raise Refused(
        f"{where}.type: {kind!r:.50} is unsupported; supported are text, image, document, "
        "thinking, tool_use and tool_result",
        param=f"{where}.type",
    )


async def _image(source: Block, where: str, fetch: Fetch) -> bytes:
    if source.get("type") == "url":
        return await fetch(_text(source, "url", where), f"{where}.url")
    return from_base64(_text(source, "data", where), f"{where}.data")


def _text(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        where = f"{where}.{name}"
        raise Refused(f"{where}: expected a text, got {type(value).__name__}", param=where)
    return value
