"""Items of the input of /v1/responses as messages."""

from __future__ import annotations

from typing import Any

import msgspec

from ...bodies import field_text
from ...chat_requests import check_count
from ...endpoint import Call
from ...errors import Refused, wrong_body
from .inputs import ChatMessage, CustomCall, Function, ToolCall
from .response_tools import flat_name

Item = dict[str, Any]

# Types of items that answers of OpenAI's servers have, and nothing here can make use of.
_LEFT_OUT = frozenset(
    "web_search_call file_search_call code_interpreter_call image_generation_call mcp_call "
    "mcp_list_tools mcp_approval_request mcp_approval_response computer_call computer_call_output "
    "tool_search_call tool_search_output additional_tools program program_output compaction "
    "compaction_trigger configuration_update".split()
)
# Types of calls, and the field of their arguments.
_CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
_OUTPUTS = frozenset(f"{name}_output" for name in _CALLS)


def read_items(items: str | list[Item] | None, call: Call) -> list[ChatMessage]:
    """The messages of an input. Warns of items of OpenAI's servers, which are left out.

    Raises:
        Refused: an item is wrong, or of an unsupported type.
    """
    if isinstance(items, str):
        return [ChatMessage("user", items)]
    check_count(items or (), "input")
    messages: list[ChatMessage] = []
    reasoning: str | None = None
    for i, item in enumerate(items or ()):
        where = f"input[{i}]"
        kind = item.get("type") or "message"
        if kind == "message":
            message = _message(item, where)
        elif kind == "reasoning":
            reasoning = _reasoning(item)
            continue
        elif kind in _CALLS:
            message = _call(item, kind, where, messages)
        elif kind in _OUTPUTS:
            message = _output(item, where)
        elif kind in _LEFT_OUT:
            call.warn(f"{where}: {kind!a:.60} is left out")
            continue
        else:
            raise Refused(
                f"{where}.type: {kind!r:.50} is unsupported; supported are message, reasoning, "
                f"{', '.join(_CALLS)} and their outputs",
                param=f"{where}.type",
            )
        if message is None:  # it went into the message before
            continue
        if message.role == "assistant" and reasoning:
            message.reasoning_content, reasoning = reasoning, None
        messages.append(message)
    return messages


def _message(item: Item, where: str) -> ChatMessage:
    try:
        return msgspec.convert(item, ChatMessage)
    except msgspec.ValidationError as error:
        wrong = wrong_body(error)
        param = f"{where}.{wrong.param}" if wrong.param else where
        raise Refused(f"{where}.{wrong}", param=param) from None


def _call(item: Item, kind: str, where: str, before: list[ChatMessage]) -> ChatMessage | None:
    """A message with a call; None if the message before took it, since it is the model's, too."""
    arguments, id = item.get(_CALLS[kind]), field_text(item, "call_id", where)
    if kind in ("function_call", "custom_tool_call"):
        name = flat_name(field_text(item, "name", where), item.get("namespace"))
    else:
        name = kind.removesuffix("_call")
    if kind == "custom_tool_call":
        call = ToolCall(id=id, custom=CustomCall(name, field_text(item, "input", where)))
    else:
        if kind == "local_shell_call" and isinstance(arguments, dict):
            arguments = {key: value for key, value in arguments.items() if key != "type"}
        known = arguments if isinstance(arguments, (str, dict)) else None
        call = ToolCall(Function(name, known), id)
    last = before[-1] if before else None
    if last is not None and last.role == "assistant":
        last.tool_calls = [*(last.tool_calls or ()), call]
        return None
    return ChatMessage("assistant", tool_calls=[call])


def _output(item: Item, where: str) -> ChatMessage:
    """The result of a call: a text, parts of a content, or what a shell or patch came to."""
    by_id = item["type"] == "local_shell_call_output" and "call_id" not in item
    id, output = field_text(item, "id" if by_id else "call_id", where), item.get("output")
    if item["type"] == "apply_patch_call_output":
        output = "\n".join(str(one) for one in (item.get("status"), output) if one)
    elif item["type"] == "shell_call_output":
        output = msgspec.json.encode(output).decode()
    return ChatMessage("tool", output if isinstance(output, (str, list)) else "", tool_call_id=id)


def _reasoning(item: Item) -> str:
    parts = item.get("content") or item.get("summary") or ()
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
