"""Chats as runners take them, from the parts that all APIs have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..bounds import limits
from .errors import Refused

Part = dict[str, Any]
Message = dict[str, Any]


def text_part(text: str) -> Part:
    """A part of a content that is text."""
    return {"type": "text", "text": text}


def item_part(kind: str, data: bytes) -> Part:
    """A part of a content that is an image or a sound.

    Args:
        kind: "image", "audio" or "video".
    """
    return {"type": kind, kind: data}


def simplified(parts: list[Part]) -> str | list[Part]:
    """A content of one text as that text."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def tool_call(id: str, name: str, arguments: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """A call in a message. Templates want its arguments as an object."""
    if not isinstance(arguments, Mapping):
        arguments = arguments_of(arguments or "")
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call, JSON text, as an object; a text that is none, such as a model may
    have written, under a name."""
    text = text or "{}"
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"arguments": text}


def dated(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of a chat template, and today's date under the names by which templates of Llama 3
    and of FireFunction ask for it, as llama-server gives it."""
    today = datetime.now()
    dates = {"date_string": today.strftime("%d %b %Y"), "datetime": today.strftime("%b %d %Y")}
    return {**dates, **variables}


def check_count(messages: Sequence[Any], param: str = "messages") -> None:
    """Refuses more messages than would be converted in a moment, before they are.

    Args:
        messages: structs or objects with a `content` and `tool_calls`, maybe.
        param: the field of the request that they are, for the message.

    Raises:
        Refused: they and the parts of their contents are more than `limits.serve_messages`.
    """
    count = len(messages)
    if count <= limits.serve_messages:
        count += sum(map(_parts, messages))
    if count > limits.serve_messages:
        raise Refused(
            f"{param}: more than {limits.serve_messages:,} messages and parts of their contents "
            "(the limit serve_messages)",
            413,
            param=param,
        )


def _parts(message: Any) -> int:
    """The parts of a message and, as those of results of tools, within these."""
    count = 0
    for name in ("content", "tool_calls"):
        get = message.get if isinstance(message, dict) else lambda key: getattr(message, key, None)
        if isinstance(parts := get(name), list):
            count += len(parts) + sum(_parts(one) for one in parts if isinstance(one, dict))
    return count


def checked(messages: list[Message]) -> list[Message]:
    """The messages, results of tools with the name of their function, which some templates want.

    Raises:
        Refused: there are none, or too many images and sounds.
    """
    if not messages:
        raise Refused("messages: give at least one", param="messages")
    items = 0
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and "name" not in message:
            found = names.get(message.get("tool_call_id", ""))
            if found is not None:
                message["name"] = found
        if isinstance(message.get("content"), list):
            items += sum(part["type"] != "text" for part in message["content"])
    if items > limits.serve_items:
        raise Refused(
            f"the messages have {items} images and sounds; the limit serve_items is "
            f"{limits.serve_items}",
            param="messages",
        )
    return messages
