"""Calls whose arguments are no JSON, and become JSON as they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from .deltas import Writer
from .tool_calls import ANY, Python, Quoted, Tagged, named
from .values import BRACKETS, DEEPEST, Literals, Malformed, Tools, cast, types

_WORD_END = re.compile(r"[^\s,\[\](){}:=\"'<>]*[\s,\[\](){}:=\"'<>]")


class _Steps:
    """Reads text as it comes, each piece by the step that waits for it.

    Attributes:
        count: calls that have begun.
    """

    def __init__(self, writer: Writer, begun: str, step: Callable[[], bool]):
        self.count = 0
        self._writer, self._text, self._step = writer, begun, step
        self._dead = False  # what came is no call

    def feed(self, text: str) -> None:
        if not self._dead:
            self._text += text
        while not self._dead and self._step():
            pass


class TaggedCalls(_Steps):
    """Tags around the name and around each argument; texts are streamed, others come whole."""

    def __init__(self, writer: Writer, form: Tagged, tools: Tools, begun: str):
        super().__init__(writer, begun, self._function)
        self._form, self._tools = form, tools
        self._name = self._key = ""
        self._keys: set[str] = set()
        self._schema: object = None

    def end(self, complete: bool) -> None:
        if self._step == self._function and not self._form.function[1] and complete:
            self._begin(self._text)
        if self._step == self._between and not self._dead and complete:
            self._writer.arguments("}")

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
        self._writer.arguments("{")
        self._text, self._step = self._text[end:] if end else "", self._between
        self._keys, self.count = set(), self.count + 1
        return True

    def _between(self) -> bool:
        """Waits for another argument, or for the end of the function."""
        form, text = self._form, self._text.lstrip()
        self._text = text
        if form.end and text.startswith(form.end):
            self._writer.arguments("}")
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
        self._writer.arguments(f"{', ' if self._keys else ''}{_dumped(key)}: ")
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
        end = len(text) - _begun(text, shut)
        if form.lines and text[:end].endswith("\n"):
            end -= 1
        self._writer.arguments(_dumped(text[:end])[1:-1])
        self._text = text[end:]
        return False


class LiteralCalls(_Steps):
    """`call:NAME{key:value, …}` or `[NAME(key=value, …), …]` as JSON; texts between a mark of their
    own are streamed, other values come whole."""

    def __init__(self, writer: Writer, form: Quoted | Python, only: Tools | None):
        super().__init__(writer, "", self._name)
        self._form, self._only = form, only
        self._mark = form.quote if isinstance(form, Quoted) else ""
        self._open: list[tuple[str, str]] = []  # what closes each bracket, here and in JSON
        self._first = True

    def end(self, complete: bool) -> None:
        pass

    def _name(self) -> bool:
        """Waits for the name of a function."""
        is_quoted = isinstance(self._form, Quoted)
        head, bracket, rest = self._text.partition("{" if is_quoted else "(")
        if not bracket:
            return False
        before = "," if self.count else "["
        if isinstance(self._form, Quoted):
            before = self._form.before
        head = head.strip()
        try:
            if not head.startswith(before):
                raise Malformed
            name = named(head.removeprefix(before))
            if self._only is not None and name not in self._only:
                raise Malformed
        except Malformed:
            self._dead = True
            return False
        self._writer.begin(name, "")
        self.count += 1
        self._text = rest
        return self._enter("}" if is_quoted else ")", "{")

    def _enter(self, close: str, begin: str) -> bool:
        self._writer.arguments(begin)
        self._open.append((close, {"{": "}", "[": "]"}[begin]))
        self._first, self._step, self._dead = True, self._item, len(self._open) > DEEPEST
        return True

    def _item(self) -> bool:
        """Waits for a key or a value, or for the end of these."""
        self._text = self._text.lstrip()
        close, end = self._open[-1]
        if self._text.startswith(close):
            self._writer.arguments(end)
            self._open.pop()
            self._text, self._first = self._text[1:], False
            self._step = self._after if self._open else self._name
            return True
        comma = "" if self._first else ", "
        if end == "]":
            if not self._text:
                return False
            self._writer.arguments(comma)
        else:
            key, size = self._key("=" if close == ")" and len(self._open) == 1 else ":")
            if not size:
                return False
            self._writer.arguments(f"{comma}{_dumped(key)}: ")
            self._text = self._text[size:]
        self._step = self._value
        return True

    def _key(self, sign: str) -> tuple[str, int]:
        """A key, and the length of it and of its sign; 0 while it is not complete."""
        text = Literals(self._text, *([(self._mark, self._mark)] if self._mark else []))
        if sign not in self._text:
            return "", 0
        try:
            return text.key(sign), text.at
        except Malformed:  # within quotes more may come
            quotes = ("'", '"', self._mark) if self._mark else ("'", '"')
            self._dead = not self._text.startswith(quotes)
            return "", 0

    def _value(self) -> bool:
        text = self._text = self._text.lstrip()
        if not text or (self._mark.startswith(text) and text != self._mark):
            return False
        if self._mark and text.startswith(self._mark):
            self._writer.arguments('"')
            self._text, self._step = text[len(self._mark) :], self._in_text
            return True
        if text[0] in "{[(":
            self._text = text[1:]
            return self._enter(BRACKETS[text[0]], "{" if text[0] == "{" else "[")
        literals, is_quoted = Literals(text), text[0] in "\"'"
        if not is_quoted and not _WORD_END.match(text):
            return False  # it may go on
        try:
            self._writer.arguments(_dumped(literals.value()))
        except (Malformed, ValueError):
            self._dead = not is_quoted
            return False
        self._text, self._step = text[literals.at :], self._after
        return True

    def _in_text(self) -> bool:
        text, mark, rest = self._text.partition(self._mark)
        if not mark:
            end = len(text) - _begun(text, self._mark)
            text, rest = text[:end], text[end:]
        self._writer.arguments(_dumped(text)[1:-1] + ('"' if mark else ""))
        self._text, self._step = rest, self._after if mark else self._in_text
        return bool(mark)

    def _after(self) -> bool:
        """Waits for a comma or an end after a value."""
        self._text, self._first = self._text.lstrip(), False
        comma = self._text.startswith(",")
        self._dead = not comma and bool(self._text) and self._text[0] != self._open[-1][0]
        self._text, self._step = self._text[comma:], self._item if self._text else self._after
        return self._step == self._item and not self._dead


def _begun(text: str, mark: str) -> int:
    """The characters at the end of a text with which a mark may begin."""
    return max((n for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0)


def _dumped(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
