"""Tool calls as models write them: a class for each format, with a family's markers as fields.

Tags and literals are read by `rewritten` alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import (
    WHITESPACE,  # type: ignore[attr-defined]
    JSONDecoder,  # type: ignore[attr-defined]
)
from typing import Any, ClassVar

from .deltas import ToolCall
from .values import Literals, Malformed, Tools, dumped

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
    if isinstance(value, str) and value.lstrip().startswith("{"):  # JSON within JSON
        return arguments_of(value)
    if not isinstance(value, dict):
        raise Malformed
    return text.strip()


def json_calls(text: str) -> list[ToolCall]:
    """The call of an object, or those of a list of them.

    Raises:
        Malformed: there is another form of JSON, or none.
    """
    begun = text.lstrip()
    _decoded(begun)  # as a whole, so that the parts may be looked at alone
    objects = _parts(begun) if begun.startswith("[") else [("", begun)]
    return [_call(part) for _, part in objects]


def _call(text: str) -> ToolCall:
    if not text.startswith("{"):
        raise Malformed
    parts = dict(_parts(text))
    inner = parts.get("function", "")
    if inner.startswith("{"):  # the envelope of OpenAI's
        parts = {**parts, **dict(_parts(inner))}
    elif inner and "name" not in parts:
        parts["name"] = inner
    name = _text(parts, NAMES)
    if not name.strip() or not any(parts.get(key, "").startswith('"') for key in NAMES):
        raise Malformed
    text = next((parts[key] for key in ARGUMENTS if key in parts), "{}")
    return ToolCall(name, "{}" if text == "null" else arguments_of(text), _text(parts, IDS))


def _text(parts: dict[str, str], keys: tuple[str, ...]) -> str:
    text_of_key = next((parts[key] for key in keys if key in parts), '""')
    value = _decoded(text_of_key)
    text = value if isinstance(value, str) else text_of_key
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


_NAME = re.compile(r"[^\s<>{}\[\]()\"'=]{1,256}")


def named(text: str) -> str:
    """A name of a function.

    Raises:
        Malformed: it is none.
    """
    name = text.strip()
    if not _NAME.fullmatch(name) or not name.isprintable():
        raise Malformed
    return name


@dataclass(frozen=True)
class Json:
    """`{"name": …, "arguments": {…}}`, or a list of such.

    Attributes:
        listed: the model writes a list. name, arguments: keys that it writes, of several known.
    """

    listed: bool = False
    name: str = "name"
    arguments: str = "arguments"
    marks: ClassVar[tuple[str, ...]] = ()

    def read(self, body: str, tools: Tools) -> list[ToolCall]:
        return json_calls(body)


@dataclass(frozen=True)
class Named:
    """A name, a marker, and a JSON object of arguments.

    Attributes:
        between: ends the name. before: begins it. also: markers that may stand besides these.
        id_mark: the name goes on with this and the call's id.
        numbered: what stands before the object is the id; `:NUMBER` follows the name.
    """

    between: str
    before: str = ""
    also: tuple[str, ...] = ()
    id_mark: str = ""
    numbered: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.between, self.id_mark)

    def read(self, body: str, tools: Tools) -> list[ToolCall]:
        if body.lstrip().startswith(("[", '{"name"')):
            return json_calls(body)
        begin = body.find("{")
        arguments = arguments_of(body[begin:])
        name, id = self.head(body[:begin])
        return [ToolCall(name, arguments, id)]

    def head(self, text: str) -> tuple[str, str]:
        """Name and id, of the text before the arguments.

        Raises:
            Malformed: it has no name.
        """
        head = text.strip()
        for marker in (*self.also, self.between, *self.also):
            head = head.removesuffix(marker).strip()
        id = head if self.numbered else ""
        head = head.removeprefix(self.before)
        if self.numbered:
            head = re.sub(r":\d+$", "", head)
        elif self.id_mark:
            head, _, id = head.partition(self.id_mark)
        return named(head), id.strip() if id.isprintable() else ""


@dataclass(frozen=True)
class Tagged:
    """Tags around the name, and around each argument, which is written as plain text.

    Attributes:
        function: before and after the name. end: closes the function.
        parameter: before and after an argument's name. value: before its value, if not at once.
        shut: after the value.
        lines: a value stands on lines of its own.
        wrap: may stand around a value, whose text would be read as tags.
    """

    function: tuple[str, str]
    end: str
    parameter: tuple[str, str]
    shut: str
    value: str = ""
    lines: bool = False
    wrap: tuple[str, str] = ("", "")
    marks: ClassVar[tuple[str, ...]] = ()

    @property
    def inside(self) -> tuple[str, str]:
        """Between these stands text that closes nothing."""
        return self.value or self.parameter[0], self.shut


ANY = ["integer", "number", "boolean", "null", "object", "array", "string"]


@dataclass(frozen=True)
class Quoted:
    """`call:NAME{key:value, …}` with bare keys, and strings between a marker of their own."""

    quote: str
    before: str = "call:"

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.quote,)

    @property
    def inside(self) -> tuple[str, str]:
        return self.quote, self.quote


@dataclass(frozen=True)
class Python:
    """`[name(key=value, …), …]`."""

    marks: ClassVar[tuple[str, ...]] = ()

    def read(self, body: str, tools: Tools) -> list[ToolCall]:
        if re.match(r"\s*\[?\s*\{", body):
            return json_calls(body)
        raise Malformed


@dataclass(frozen=True)
class Code:
    """A program for a function named one of `names`, or a call as JSON, or `NAME.call(…)`."""

    names: tuple[str, ...] = ("python", "code_interpreter", "ipython")

    inside: ClassVar[tuple[str, str]] = ("", "")
    marks: ClassVar[tuple[str, ...]] = ()

    def read(self, body: str, tools: Tools) -> list[ToolCall]:
        body = body.strip()
        if body.startswith("{"):
            return json_calls(body)
        try:
            text = Literals(body)
            name, arguments = text.call()
            text.end()
            return [ToolCall(named(name.removesuffix(".call")), dumped(arguments))]
        except Malformed:
            function = next((name for name in self.names if name in tools), "")
            if not (function and body):
                raise
        return [ToolCall(function, dumped({"code": body}))]


Form = Json | Named | Tagged | Quoted | Python | Code
