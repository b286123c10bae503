"""Items of a request to /v1/responses as messages."""

from __future__ import annotations

from typing import Any

import msgspec

from ...conversation import check_count
from ...errors import Refused, wrong_body
from .messages import ChatMessage, Function, ToolCall

Item = dict[str, Any]


def read_items(given: str | list[Item] | None) -> list[ChatMessage]:
    """The messages of an input.

    Raises:
        Refused: an item is wrong, or of an unsupported type.
    """
    if isinstance(given, str):
        return [ChatMessage("user", given)]
    check_count(given or (), "input")
    found: list[ChatMessage] = []
    reasoning: str | None = None
    for i, item in enumerate(given or ()):
        where = f"input[{i}]"
        kind = item.get("type") or "message"
        if kind == "message":
            message = _message(item, where)
        elif kind == "reasoning":
            reasoning = _reasoning(item)
            continue
        elif kind == "function_call":
            message = _call(item, where, found)
        elif kind == "function_call_output":
            id = _text(item, "call_id", where)
            output = item.get("output")
            content = output if isinstance(output, (str, list)) else ""
            message = ChatMessage("tool", content, tool_call_id=id)
        else:
            raise Refused(
                f"{where}.type: {kind!r:.50} is unsupported; supported are message, reasoning, "
                "function_call and function_call_output",
                param=f"{where}.type",
            )
        if message is None:  # it went into the message before
            continue
        if message.role == "assistant" and reasoning:
            message.reasoning_content, reasoning = reasoning, None
        found.append(message)
    return found


def _message(item: Item, where: str) -> ChatMessage:
    try:
        return msgspec.convert(item, ChatMessage)
    except msgspec.ValidationError as error:
        wrong = wrong_body(error)
        param = f"{where}.{wrong.param}" if wrong.param else where
        raise Refused(f"{where}.{wrong}", param=param) from None


def _call(item: Item, where: str, before: list[ChatMessage]) -> ChatMessage | None:
    """A message with a call; None if the message before took it, since it is the model's, too."""
    arguments = item.get("arguments")
    call = ToolCall(
        Function(
            _text(item, "name", where), arguments if isinstance(arguments, (str, dict)) else None
        ),
        _text(item, "call_id", where),
    )
    last = before[-1] if before else None
    if last is not None and last.role == "assistant":
        last.tool_calls = [*(last.tool_calls or ()), call]
        return None
    return ChatMessage("assistant", tool_calls=[call])


def _reasoning(item: Item) -> str:
    parts = item.get("content") or item.get("summary") or ()
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _text(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise Refused(f"{where}.{name}: expected a text", param=f"{where}.{name}")
    return value
