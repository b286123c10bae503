"""Functions that a model may call, and values that it writes for them as plain text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


class Malformed(Exception):
    """The text is no call; never leaves the parser, which gives the text as content."""


class Tools:
    """Functions by name.

    Args:
        tools: JSON schemas of functions as OpenAI spells them, with or without their envelope.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None = None):
        self.parameters: dict[str, Mapping[str, Any]] = {}
        self.strict: dict[str, bool] = {}
        for tool in tools or ():
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
                schema = function.get("parameters")
                self.parameters[name] = schema if isinstance(schema, Mapping) else {}
                self.strict[name] = function.get("strict") is True

    def __contains__(self, name: object) -> bool:
        return name in self.parameters

    def properties(self, name: str) -> Mapping[str, Any]:
        """The schemas of a function's parameters; {} if unknown."""
        found = self.parameters.get(name, {}).get("properties")
        return found if isinstance(found, Mapping) else {}


def types(schema: Any) -> list[str]:
    """The types that a schema names, in its order; [] if it names none."""
    if not isinstance(schema, Mapping):
        return []
    named = schema.get("type")
    listed = named if isinstance(named, list) else [named]
    found = [name for name in listed if isinstance(name, str)]
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else ():
            found += types(choice)
    if not found:
        options = schema.get("enum", [schema["const"]] if "const" in schema else [])
        found = [_type(option) for option in options] if isinstance(options, list) else []
    if schema.get("nullable") is True:
        found.append("null")
    return list(dict.fromkeys(found))


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "null" if value is None else "object")


def cast(text: str, schema: Any) -> Any:
    """The value that a text means by its schema: the first of its types but "string" that the text
    fits; the text itself where none does, or the schema is unknown. So does transformers."""
    for name in types(schema):
        try:
            return _CASTS[name](text)
        except (KeyError, ValueError, OverflowError, RecursionError):
            continue
    return text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return int(number) if number.is_integer() and "." not in text else number


def _of(words: Mapping[str, Any], text: str) -> Any:
    word = text.strip()
    if word not in words:
        raise ValueError
    return words[word]


def _boolean(text: str) -> bool:
    return _of({"true": True, "1": True, "false": False, "0": False}, text.lower())


def _json(text: str, kind: type) -> Any:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError
    return value


_CASTS = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": lambda text: _of({"null": None, "None": None}, text),
    "object": lambda text: _json(text, dict),
    "array": lambda text: _json(text, list),
}


def dumped(arguments: Mapping[str, Any]) -> str:
    """JSON text of an object.

    Raises:
        Malformed: JSON has no such value, or it is nested too deeply.
    """
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # Half of a pair of surrogates cannot be sent, but its escape can.
        return text if text.isprintable() or _sendable(text) else json.dumps(arguments)
    except (ValueError, RecursionError) as error:
        raise Malformed from error


def _sendable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
