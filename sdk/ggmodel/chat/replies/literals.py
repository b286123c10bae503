"""Reads values that look like Python's, or like JSON with other quotes and bare keys."""

from __future__ import annotations

import json
import re
from typing import Any

from .values import Malformed

_DEPTH = 200
_WORDS = {
    **{"true": True, "True": True, "false": False, "False": False},
    **{"null": None, "None": None},
}
_WORD = re.compile(r"[^\s,\[\](){}:=\"'<>]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_SPACE = re.compile(r"\s*")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(\n|.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_STRING = {
    '"': re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL),
    "'": re.compile(r"'[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL),
}
_KEY = re.compile(r"[^:,{}\[\]\s][^:,{}\[\]]*")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")


class Literals:
    """Reads values from a text, from `at` on.

    Args:
        quotes: marks before and after a string, besides both kinds of quotes.
    """

    def __init__(self, text: str, *quotes: tuple[str, str]):
        self.text, self.at = text, 0
        self._quotes, self._depth = quotes, 0

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """`[name(key=value, …), …]` to the end of the text."""
        self.need("[")
        found = []
        while not self.took("]"):
            found.append(self.call())
            if not self.took(","):
                self.need("]")
                break
        self.end()
        return found

    def call(self) -> tuple[str, dict[str, Any]]:
        """`name(key=value, …)`."""
        name = self.match(_NAME)
        self.need("(")
        arguments: dict[str, Any] = {}
        while not self.took(")"):
            key = self.match(_NAME)
            self.need("=")
            arguments[key] = self.value()
            if not self.took(","):
                self.need(")")
                break
        return name, arguments

    def value(self) -> Any:
        if (text := self._quoted()) is not None:
            return text
        sign = self.text[self.at : self.at + 1]
        if sign in ("[", "(", "{"):
            self._depth += 1
            if self._depth > _DEPTH:
                raise Malformed
            made = self._object() if sign == "{" else self._list("]" if sign == "[" else ")")
            self._depth -= 1
            return made
        return _word(self.match(_WORD))

    def done(self) -> bool:
        """Whether nothing but space is left."""
        self._space()
        return self.at == len(self.text)

    def end(self) -> None:
        """Raises `Malformed` unless nothing but space is left."""
        if not self.done():
            raise Malformed

    def until(self, marker: str) -> str:
        """The text up to a marker, after which reading goes on."""
        end = self.text.find(marker, self.at)
        if end < 0:
            raise Malformed
        made, self.at = self.text[self.at : end], end + len(marker)
        return made

    def match(self, pattern: re.Pattern[str]) -> str:
        self._space()
        found = pattern.match(self.text, self.at)
        if not found:
            raise Malformed
        self.at = found.end()
        return found[0]

    def _list(self, close: str) -> list[Any]:
        self.at += 1
        made: list[Any] = []
        while not self.took(close):
            made.append(self.value())
            if not self.took(","):
                self.need(close)
                break
        return made

    def _object(self) -> dict[str, Any]:
        self.at += 1
        made: dict[str, Any] = {}
        while not self.took("}"):
            key = self._key()
            self.need(":")
            made[key] = self.value()
            if not self.took(","):
                self.need("}")
                break
        return made

    def _key(self) -> str:
        text = self._quoted()
        return self.match(_KEY).strip() if text is None else text

    def _quoted(self) -> str | None:
        """A string, if one begins here."""
        self._space()
        for begin, end in self._quotes:
            if self.took(begin):
                return self.until(end)
        sign = self.text[self.at : self.at + 1]
        if sign not in _STRING:
            return None
        inner = self.match(_STRING[sign])[1:-1]
        if "\\" not in inner:
            return inner
        made = _ESCAPE.sub(_unescaped, inner)
        return made.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _space(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]

    def took(self, sign: str) -> bool:
        self._space()
        took = self.text.startswith(sign, self.at)
        self.at += len(sign) if took else 0
        return took

    def need(self, sign: str) -> None:
        if not self.took(sign):
            raise Malformed


def _word(word: str) -> Any:
    if word in _WORDS:
        return _WORDS[word]
    if not _NUMBER.fullmatch(word):
        raise Malformed
    try:
        return json.loads(word)
    except ValueError as error:  # too many digits
        raise Malformed from error


def _unescaped(found: re.Match[str]) -> str:
    code, sign = found[1] or found[2], found[3]
    return chr(int(code, 16)) if code else _ESCAPES.get(sign, sign if sign in "\\'\"" else found[0])
