"""Ways in which models write calls: one class a way, with the markers of a family as its fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from .deltas import Call
from .json_calls import arguments_of, json_calls
from .literals import Literals
from .values import Malformed, Tools, cast, dumped

_NAME = re.compile(r"[^\s<>{}\[\]()\"'=]{1,256}")


def _named(text: str) -> str:
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

    def read(self, body: str, tools: Tools) -> list[Call]:
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

    def read(self, body: str, tools: Tools) -> list[Call]:
        if body.lstrip().startswith(("[", '{"name"')):
            return json_calls(body)
        begin = body.find("{")
        head, arguments = body[:begin].strip(), arguments_of(body[begin:])
        for marker in (*self.also, self.between, *self.also):
            head = head.removesuffix(marker).strip()
        id = head if self.numbered else ""
        head = head.removeprefix(self.before)
        if self.numbered:
            head = re.sub(r":\d+$", "", head)
        elif self.id_mark:
            head, _, id = head.partition(self.id_mark)
        return [Call(_named(head), arguments, id.strip() if id.isprintable() else "")]


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

    def read(self, body: str, tools: Tools) -> list[Call]:
        text = Literals(body)
        calls = [self._call(text, tools)]
        while not text.done():
            calls.append(self._call(text, tools))
        return calls

    def _call(self, text: Literals, tools: Tools) -> Call:
        text.need(self.function[0])
        name = _named(self._name(text))
        schemas, arguments = tools.properties(name), dict[str, Any]()
        while not (text.took(self.end) if self.end else text.done()):
            text.need(self.parameter[0])
            # A tag may say more of its value: name="…" string="true".
            key, _, more = text.until(self.parameter[1]).partition('"')
            key = key.strip()
            if self.value:
                text.need(self.value)
            value = text.until(self.shut)
            if self.lines:
                value = value.removeprefix("\n").removesuffix("\n")
            if self.wrap[0] and value.strip().startswith(self.wrap[0]):
                value = value.strip().removeprefix(self.wrap[0]).removesuffix(self.wrap[1])
            schema = schemas.get(key)
            if "string=" in more:
                schema = {"type": "string" if '"true' in more else _ANY}
            if key in arguments or not key:
                raise Malformed
            arguments[key] = cast(value, schema)
        return Call(name, dumped(arguments))

    def _name(self, text: Literals) -> str:
        if self.function[1]:
            return text.until(self.function[1])
        end = text.text.find(self.parameter[0], text.at)
        begin, text.at = text.at, len(text.text) if end < 0 else end
        return text.text[begin : text.at]


_ANY = ["integer", "number", "boolean", "null", "object", "array", "string"]


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

    def read(self, body: str, tools: Tools) -> list[Call]:
        head, brace, rest = body.partition("{")
        head = head.strip()
        if not head.startswith(self.before):
            raise Malformed
        text = Literals(brace + rest, (self.quote, self.quote))
        arguments = text.value()
        text.end()
        return [Call(_named(head.removeprefix(self.before)), dumped(arguments))]


@dataclass(frozen=True)
class Python:
    """`[name(key=value, …), …]`."""

    marks: ClassVar[tuple[str, ...]] = ()

    def read(self, body: str, tools: Tools) -> list[Call]:
        if re.match(r"\s*\[?\s*\{", body):
            return json_calls(body)
        made = [Call(_named(name), dumped(given)) for name, given in Literals(body).calls()]
        if not made:
            raise Malformed
        return made


@dataclass(frozen=True)
class Code:
    """A program for a function named one of `names`, or a call as JSON, or `NAME.call(…)`."""

    names: tuple[str, ...] = ("python", "code_interpreter", "ipython")

    inside: ClassVar[tuple[str, str]] = ("", "")
    marks: ClassVar[tuple[str, ...]] = ()

    def read(self, body: str, tools: Tools) -> list[Call]:
        body = body.strip()
        if body.startswith("{"):
            return json_calls(body)
        try:
            text = Literals(body)
            name, given = text.call()
            text.end()
            return [Call(_named(name.removesuffix(".call")), dumped(given))]
        except Malformed:
            known = next((name for name in self.names if name in tools), "")
            if not (known and body):
                raise
        return [Call(known, dumped({"code": body}))]


Form = Json | Named | Tagged | Quoted | Python | Code
