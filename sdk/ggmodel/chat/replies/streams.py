"""Calls as they are written: names as soon as they are complete, arguments piece by piece."""

from __future__ import annotations

import json
import re
from typing import Protocol

from .deltas import Writer
from .tool_calls import ANY, ARGUMENTS, IDS, NAMES, Named, Tagged, named
from .values import Malformed, Tools, cast, types

_HEAD = 4096  # characters of a call before its arguments
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"[\w.+-]+(?=[\s,}\]])")
_SPACE = re.compile(r"\s*")
_OBJECT = re.compile(r'\{\s*["}]')
_INSIDE = re.compile(r'["\\\x00-\x1f]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


class Object:
    """Copies a JSON object as it comes, up to its end. Line breaks within strings get escapes."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped = 0, False, False

    def take(self, text: str) -> tuple[str, int]:
        """The copy of a piece, and the place after the end; -1 if it is further on."""
        made: list[str] = []
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                made.append(text[at])
                at += 1
                continue
            match = (_INSIDE if self._quoted else _OUTSIDE).search(text, at)
            if match is None:
                made.append(text[at:])
                break
            sign, before = match[0], text[at : match.start()]
            at = match.end()
            made.append(before)
            made.append(_ESCAPES.get(sign) or (sign if sign >= " " else f"\\u{ord(sign):04x}"))
            if sign == '"':
                self._quoted = not self._quoted
            elif sign == "\\":
                self._escaped = True
            elif not self._quoted:
                self._depth += 1 if sign in "{[" else -1
                if self._depth <= 0:
                    return "".join(made), at
        return "".join(made), -1


class Calls(Protocol):
    """Writes the calls of a block as its text comes.

    Attributes:
        count: of the calls that have begun.
    """

    count: int

    def feed(self, text: str) -> None:
        """More of the block."""
        ...

    def end(self, complete: bool) -> None:
        """The block is over; `complete` if nothing of it is missing."""
        ...


class JsonCalls:
    """`{"name": …, "arguments": {…}}`, or a list of such; or a name before the arguments.

    Args:
        only: the functions that may be called; None for any.
        form: how a name is written before the arguments. name: of the function, if a header has it.
    """

    def __init__(
        self,
        writer: Writer,
        only: Tools | None = None,
        form: Named | None = None,
        name: str = "",
    ):
        self.count = 0
        self._writer, self._only, self._form, self._name = writer, only, form, name
        self._text, self._object, self._dead = "", None, False

    def feed(self, text: str) -> None:
        if not self._dead:
            self._text += text
        while not self._dead:
            if self._object is None and not self._begin():
                break
            assert self._object is not None
            copied, end = self._object.take(self._text)
            self._writer.arguments(copied)
            if end < 0:
                self._text = ""
                break
            self._text, self._object = self._text[end:], None

    def end(self, complete: bool) -> None:
        pass  # arguments are the model's own text

    def _begin(self) -> bool:
        """Whether arguments begin now."""
        head = self._text[:_HEAD]
        try:
            if self._form is not None and (self._name or not re.match(r"\s*[\[{]", head)):
                found = self._named(self._form, head)
            else:
                found = _json_head(head, self.count > 0)
        except Malformed:
            found, self._dead = None, True
        if found is None:
            self._dead = self._dead or len(self._text) > _HEAD
            return False
        name, id, at = found
        if self._only is not None and name not in self._only:
            self._dead = True
            return False
        self._writer.begin(name, id)
        self.count += 1
        self._text, self._object = self._text[at:], Object()
        return True

    def _named(self, form: Named, head: str) -> tuple[str, str, int] | None:
        if self.count:
            raise Malformed
        match = _OBJECT.search(head)
        if match is None:
            return None
        if head.find("{") < match.start():
            raise Malformed
        name, id = form.head(self._name + head[: match.start()])
        return name, id, match.start()


def _json_head(text: str, later: bool) -> tuple[str, str, int] | None:
    """Name and id of a call, and the place of its arguments; None if they are not there yet.

    Args:
        later: the rest of another call comes before.

    Raises:
        Malformed: the call is written in another way.
    """
    begin = re.compile(r"[^{]*\{" if later else r"\s*(?:\[\s*)?\{").match(text)
    if begin is None:
        return None
    at, values = begin.end(), dict[str, str]()
    while True:
        key = _STRING.match(text, _space(text, at))
        if key is None:
            return None
        at = _space(text, key.end())
        if not text.startswith(":", at):
            return None
        at, name = _space(text, at + 1), key[0][1:-1]
        if name in ARGUMENTS and _OBJECT.match(text, at):
            return (*_identified(values), at)
        if name == "function" and text.startswith("{", at):
            at += 1
            continue
        value = _STRING.match(text, at) or _SCALAR.match(text, at)
        if value is None:
            return None
        values[name] = value[0]
        at = _space(text, value.end())
        if not text.startswith(",", at):
            return None
        at += 1


def _identified(values: dict[str, str]) -> tuple[str, str]:
    """The name and the id among values of an object as JSON."""
    name = next((values[key] for key in (*NAMES, "function") if key in values), "")
    id = next((values[key] for key in IDS if key in values), '""')
    try:
        name = json.loads(name, strict=False) if name.startswith('"') else ""
        id = json.loads(id, strict=False) if id.startswith('"') else id
    except ValueError as error:
        raise Malformed from error
    if not (name.strip() and name.isprintable()):
        raise Malformed
    return name, id if id.isprintable() else ""


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


class TaggedCalls:
    """Tags around the name and around each argument; texts are streamed, others come whole."""

    def __init__(self, writer: Writer, form: Tagged, tools: Tools, begun: str):
        self.count = 0
        self._writer, self._form, self._tools = writer, form, tools
        self._text, self._step = begun, self._function
        self._name = self._key = ""
        self._keys: set[str] = set()
        self._schema: object = None
        self._dead = False

    def feed(self, text: str) -> None:
        if not self._dead:
            self._text += text
        while not self._dead and self._step():
            pass

    def end(self, complete: bool) -> None:
        if self._step == self._function and not self._form.function[1] and complete:
            self._begin(self._text)
        if self._step == self._between and not self._dead and complete:
            self._close()

    def _function(self) -> bool:
        """Waits for the name of a function."""
        first, last = self._form.function
        self._text = self._text.lstrip()
        if not self._text.startswith(first):
            self._dead = not first.startswith(self._text)
            return False
        name, sign, _ = self._text[len(first) :].partition(last or self._form.parameter[0])
        if not sign:
            return False
        return self._begin(name, len(first) + len(name) + len(last))

    def _begin(self, name: str, end: int = 0) -> bool:
        try:
            self._name = named(name)
        except Malformed:
            self._dead = True
            return False
        self._writer.begin(self._name, "")
        self._text, self._step = self._text[end:] if end else "", self._between
        self._keys, self.count = set(), self.count + 1
        return True

    def _between(self) -> bool:
        """Waits for another argument, or for the end of the function."""
        form, text = self._form, self._text.lstrip()
        self._text = text
        if form.end and text.startswith(form.end):
            self._close()
            self._text, self._step = text[len(form.end) :], self._function
            return True
        begin = form.parameter[0]
        if not text.startswith(begin):
            self._dead = not any(sign.startswith(text) for sign in (begin, form.end))
            return False
        tag, sign, rest = text[len(begin) :].partition(form.parameter[1])
        if form.value:
            rest = rest.lstrip()
            if not sign or not rest.startswith(form.value):
                self._dead = bool(sign) and not form.value.startswith(rest)
                return False
            rest = rest[len(form.value) :]
        if not sign:
            return False
        key, _, more = tag.partition('"')
        return self._value_begins(key.strip(), more, rest)

    def _value_begins(self, key: str, more: str, rest: str) -> bool:
        if not key or key in self._keys:
            self._dead = True
            return False
        self._schema = self._tools.properties(self._name).get(key)
        if "string=" in more:
            self._schema = {"type": "string" if '"true' in more else ANY}
        self._writer.arguments(f"{', ' if self._keys else '{'}{_dumped(key)}: ")
        self._keys.add(key)
        self._text = rest
        is_text = not set(types(self._schema)) - {"string"} and not self._form.wrap[0]
        self._step = self._text_begins if is_text else self._value
        return True

    def _value(self) -> bool:
        """Waits for the end of a value that is no text."""
        form = self._form
        value, sign, rest = self._text.partition(form.shut)
        if not sign:
            return False
        if form.lines:
            value = value.removeprefix("\n").removesuffix("\n")
        if form.wrap[0] and value.strip().startswith(form.wrap[0]):
            value = value.strip().removeprefix(form.wrap[0]).removesuffix(form.wrap[1])
        try:
            self._writer.arguments(_dumped(cast(value, self._schema)))
        except (ValueError, RecursionError):
            self._dead = True
            return False
        self._text, self._step = rest, self._between
        return True

    def _text_begins(self) -> bool:
        if self._form.lines:
            if not self._text:
                return False
            self._text = self._text.removeprefix("\n")
        self._writer.arguments('"')
        self._step = self._in_text
        return True

    def _in_text(self) -> bool:
        """More of a text, but for what may belong to the tag that ends it."""
        shut, form = self._form.shut, self._form
        text, sign, rest = self._text.partition(shut)
        if sign:
            text = text.removesuffix("\n") if form.lines else text
            self._writer.arguments(f'{_dumped(text)[1:-1]}"')
            self._text, self._step = rest, self._between
            return True
        keep = max((n for n in range(1, len(shut)) if text.endswith(shut[:n])), default=0)
        end = len(text) - keep
        if form.lines and text[:end].endswith("\n"):
            end -= 1
        self._writer.arguments(_dumped(text[:end])[1:-1])
        self._text = text[end:]
        return False

    def _close(self) -> None:
        self._writer.arguments("}" if self._keys else "{}")


def _dumped(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
