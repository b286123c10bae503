"""Reads calls that a model writes as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from json.decoder import WHITESPACE, JSONDecoder  # type: ignore[attr-defined]
from typing import Any

from .deltas import Call
from .values import Malformed, dumped

NAMES = ("name", "tool_name")
ARGUMENTS = ("arguments", "parameters")
IDS = ("id", "tool_call_id")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_strict = JSONDecoder(parse_constant=_refuse)
_lenient = JSONDecoder(parse_constant=_refuse, strict=False)  # line breaks within strings


def arguments_of(text: str) -> str:
    """The text of an object, as it is if it is JSON already.

    Raises:
        Malformed: it is no object.
    """
    try:
        value = _strict.decode(text)
    except (ValueError, RecursionError):
        value = _decoded(text)
        text = dumped(value) if isinstance(value, dict) else ""
    if isinstance(value, str):  # JSON within JSON
        return arguments_of(value) if value.lstrip().startswith("{") else _no_object()
    return text.strip() if isinstance(value, dict) else _no_object()


def json_calls(text: str) -> list[Call]:
    """The call of an object, or those of a list of them.

    Raises:
        Malformed: there is another form of JSON, or none.
    """
    begun = text.lstrip()
    _decoded(begun)  # as a whole, so that the parts may be looked at alone
    objects = _parts(begun) if begun.startswith("[") else [("", begun)]
    return [_call(part) for _, part in objects]


def _call(text: str) -> Call:
    if not text.startswith("{"):
        _no_object()
    parts = dict(_parts(text))
    inner = parts.get("function", "")
    if inner.startswith("{"):  # the envelope of OpenAI's
        parts = {**parts, **dict(_parts(inner))}
    elif inner and "name" not in parts:
        parts["name"] = inner
    name = _text(parts, NAMES)
    if not name.strip() or not any(parts.get(key, "").startswith('"') for key in NAMES):
        raise Malformed
    arguments = next((parts[key] for key in ARGUMENTS if key in parts), "{}")
    return Call(name, "{}" if arguments == "null" else arguments_of(arguments), _text(parts, IDS))


def _text(parts: dict[str, str], keys: tuple[str, ...]) -> str:
    found = next((parts[key] for key in keys if key in parts), '""')
    value = _decoded(found)
    text = value if isinstance(value, str) else found
    return text if text.isprintable() else ""


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Keys and the texts of values of an object; for a list keys are ""."""
    is_object, at = text.startswith("{"), 1
    while True:
        at = _space(text, at)
        if text[at : at + 1] in ("]", "}", ""):
            return
        key = ""
        if is_object:
            key, at = _lenient.raw_decode(text, at)
            at = _space(text, _space(text, at) + 1)  # the colon
        _, end = _lenient.raw_decode(text, at)
        yield key, text[at:end]
        at = _space(text, end) + 1  # the comma


def _space(text: str, at: int) -> int:
    return WHITESPACE.match(text, at).end()


def _decoded(text: str) -> Any:
    try:
        return _lenient.decode(text)
    except (ValueError, RecursionError) as error:
        raise Malformed from error


def _no_object() -> str:
    raise Malformed
