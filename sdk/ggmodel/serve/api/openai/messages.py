"""OpenAI's messages as runners take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ...conversation import Message, Part, check_count, item_part, simplified, text_part, tool_call
from ...errors import Refused
from ...media import Media, from_base64

# OpenAI's newer name of the role that instructs the model; templates know the older one.
_ROLES = {"developer": "system", "function": "tool"}
_URLS = {"image_url": "image", "audio_url": "audio", "video_url": "video"}


class Function(Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Struct):
    function: Function
    id: str = ""
    type: str = "function"


class ChatMessage(Struct):
    """A message of a request."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: Function | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


async def converted(
    messages: Sequence[ChatMessage], media: Media, where: str = "messages"
) -> list[Message]:
    """The messages, images and sounds as bytes.

    Args:
        where: the field of the request that they are, for messages.

    Raises:
        Refused: there are too many, a part of a content is wrong, or its URL not allowed.
    """
    check_count(messages, where)
    return [await _converted(one, f"{where}[{i}]", media) for i, one in enumerate(messages)]


async def _converted(given: ChatMessage, where: str, media: Media) -> Message:
    found: Message = {"role": _ROLES.get(given.role, given.role)}
    calls = list(given.tool_calls or ())
    if given.function_call is not None:
        calls.append(ToolCall(given.function_call))
    if isinstance(given.content, list):
        found["content"] = await _content(given.content, f"{where}.content", media)
    elif given.content is not None or not calls:
        found["content"] = given.content or given.refusal or ""
    if given.content is None and not calls and given.role in ("user", "system", "developer"):
        raise Refused(f"{where}.content: is missing", param=f"{where}.content")
    if calls:
        found["tool_calls"] = [
            tool_call(one.id, one.function.name, one.function.arguments) for one in calls
        ]
    for name in ("name", "tool_call_id"):
        if (value := getattr(given, name)) is not None:
            found[name] = value
    if reasoning := given.reasoning_content or given.reasoning:
        found["reasoning_content"] = reasoning
    return found


async def _content(parts: list[dict[str, Any]], where: str, media: Media) -> str | list[Part]:
    return simplified([await _part(part, f"{where}[{i}]", media) for i, part in enumerate(parts)])


async def _part(part: dict[str, Any], where: str, media: Media) -> Part:
    kind = part.get("type")
    if kind in ("text", "refusal", "input_text", "output_text"):
        return text_part(_text(part.get("refusal" if kind == "refusal" else "text"), where))
    if kind in _URLS:
        given = part.get(kind)
        url = given.get("url") if isinstance(given, dict) else given
        where = f"{where}.{kind}.url"
        return item_part(_URLS[str(kind)], await media.fetch(_text(url, where), where))
    if kind == "input_image":
        where = f"{where}.image_url"
        return item_part("image", await media.fetch(_text(part.get("image_url"), where), where))
    if kind == "input_audio":
        given, where = part.get("input_audio"), f"{where}.input_audio.data"
        data = _text(given.get("data") if isinstance(given, dict) else None, where)
        if data[:5].lower() == "data:":
            return item_part("audio", await media.fetch(data, where))
        return item_part("audio", from_base64(data, where))
    raise Refused(
        f"{where}.type: {kind!r:.50} is unsupported; supported are text, image_url, input_audio "
        "and video_url",
        param=f"{where}.type",
    )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise Refused(f"{where}: expected a text, got {type(value).__name__}", param=where)
    return value
