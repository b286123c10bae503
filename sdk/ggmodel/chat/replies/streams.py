"""Calls of JSON as they are written: a name as soon as it is complete, arguments piece by piece."""

from __future__ import annotations

import json
import re
from typing import Protocol

from .deltas import Writer
from .tool_calls import ARGUMENTS, IDS, NAMES, Named
from .values import Malformed, Tools

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
