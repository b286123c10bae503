"""Tools for chat templates that know none: described in a message, called and answered as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_HOW = """You can call functions. To call one, answer with a JSON object and nothing else:
{"name": "the function's name", "arguments": {"a parameter's name": "its value"}}
For several calls, write an object on a line of its own for each. The results come in the next
message. If no function is of use, answer in words. The functions:
"""
_FIRST = ("system", "user")


def describe_tools(
    messages: Sequence[Message], tools: Sequence[Any] | None
) -> list[dict[str, Any]]:
    """The messages with the functions in words, for templates that know nothing of tools.

    The description is the beginning of the system message, or of the user's first where there is
    none, since some templates refuse system messages. Calls are the JSON that it asks for, results
    messages of the user.
    """
    told = list[dict[str, Any]]()
    for message in messages:
        content, role = message.get("content"), message.get("role")
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        if calls:
            text = "\n".join(map(_json, calls))
            told.append({"role": role, "content": joined(content, text) if content else text})
        elif role == "tool":
            result = joined(f"Result of {message.get('name', 'the function')}:", content)
            if told and told[-1].get("results"):
                told[-1]["content"] = joined(told[-1]["content"], result)
            else:
                told.append({"role": "user", "content": result, "results": True})
        else:
            told.append(dict(message))
    if tools:
        text = _HOW + "\n".join(_json(tool.get("function", tool)) for tool in tools)
        first = next((i for i, one in enumerate(told) if one.get("role") in _FIRST), None)
        if first is None:
            told.insert(0, {"role": "user", "content": text})
        else:
            told[first] = {**told[first], "content": joined(text + "\n", told[first]["content"])}
    return [{key: value for key, value in one.items() if key != "results"} for one in told]


def joined(first: Any, second: Any, between: str = "\n") -> Any:
    """Two contents, texts or lists of parts, as one.

    Args:
        between: two texts.
    """
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}"
    parts = [
        [{"type": "text", "text": one}] if isinstance(one, str) else one or []
        for one in (first, second)
    ]
    return [*parts[0], *parts[1]]


def _json(function: Any) -> str:
    shown = {
        key: function[key]
        for key in ("name", "description", "parameters", "arguments")
        if function.get(key) is not None
    }
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
