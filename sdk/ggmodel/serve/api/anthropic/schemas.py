"""Schemas of Anthropic's API: messages as runners take them, answers, counts, errors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

from msgspec import Struct

from ...chat_requests import Message, Part, check_count, item_part, simplified, text_part, tool_call
from ...endpoint import Shape, event
from ...errors import Problem, Refused
from ...media import Media, from_base64
from ...requests import Ended


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


Block = dict[str, Any]


class InputMessage(Struct):
    """A message of a request."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


async def converted(
    system: str | list[Block] | None, messages: Sequence[InputMessage], media: Media
) -> list[Message]:
    """The messages of a conversation, images as bytes. Results of tools become messages of their
    own.

    Raises:
        Refused: there are too many, a block is wrong, or the URL of an image not allowed.
    """
    check_count(messages)
    check_count(system if isinstance(system, list) else [], "system")
    found: list[Message] = []
    if system:
        found.append({"role": "system", "content": await _content(system, "system", media)})
    for i, message in enumerate(messages):
        where = f"messages[{i}].content"
        if isinstance(message.content, str):
            found.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            found.append(await _assistant(message.content, where, media))
        else:
            found += await _user(message.role, message.content, where, media)
    return found


async def _user(role: str, blocks: list[Block], where: str, media: Media) -> list[Message]:
    found: list[Message] = []
    parts: list[Part] = []
    for i, block in enumerate(blocks):
        place = f"{where}[{i}]"
        if block.get("type") == "tool_result":
            id = _text(block, "tool_use_id", place)
            content = await _content(block.get("content") or "", f"{place}.content", media)
            found.append({"role": "tool", "tool_call_id": id, "content": content})
        else:
            parts.append(await _part(block, place, media))
    if parts or not found:
        found.append({"role": role, "content": simplified(parts)})
    return found


async def _assistant(blocks: list[Block], where: str, media: Media) -> Message:
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
            parts.append(await _part(block, place, media))
    found: Message = {"role": "assistant"}
    if parts or not calls:
        found["content"] = simplified(parts)
    if calls:
        found["tool_calls"] = calls
    if thoughts:
        found["reasoning_content"] = "\n".join(thoughts)
    return found


async def _content(given: Any, where: str, media: Media) -> str | list[Part]:
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise Refused(f"{where}: expected a text or a list of blocks", param=where)
    return simplified([await _part(one, f"{where}[{i}]", media) for i, one in enumerate(given)])


async def _part(block: Block, where: str, media: Media) -> Part:
    kind = block.get("type")
    if kind == "text":
        return text_part(_text(block, "text", where))
    source = block.get("source")
    if kind in ("image", "document"):
        where = f"{where}.source"
        if not isinstance(source, dict):
            raise Refused(f"{where}: is missing", param=where)
        if kind == "image":
            return item_part("image", await _image(source, where, media))
        if source.get("type") == "text":
            return text_part(_text(source, "data", where))
        raise Refused(f"{where}.type: documents are plain text here", param=f"{where}.type")
    raise Refused(
        f"{where}.type: {kind!r:.50} is unsupported; supported are text, image, document, "
        "thinking, tool_use and tool_result",
        param=f"{where}.type",
    )


async def _image(source: Block, where: str, media: Media) -> bytes:
    if source.get("type") == "url":
        return await media.fetch(_text(source, "url", where), f"{where}.url")
    return from_base64(_text(source, "data", where), f"{where}.data")


def _text(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        where = f"{where}.{name}"
        raise Refused(f"{where}: expected a text, got {type(value).__name__}", param=where)
    return value
