"""Expressions of Go's text/template as those of Jinja."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from ..errors import Unsupported

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)|"""
    r"""(?P<variable>\$\w*)|(?P<fields>(?:\.\w+)+)|(?P<dot>\.)|(?P<word>\w+)|(?P<sign>[()|]))""",
    re.DOTALL,
)
_COMPARED = {"ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_CONSTANTS = {"true": "true", "false": "false", "nil": "none"}
_DEEPEST = 50


@dataclass
class Scope:
    """Jinja's names of `.` and the variables; "" is `$`."""

    dot: str
    variables: dict[str, str] = field(default_factory=dict)


def literal(text: str) -> str:
    """A text as a string of Jinja."""
    escapes = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "'" + "".join(escapes.get(c, c) for c in text) + "'"


def snake(name: str) -> str:
    """The key in JSON of a field of Go: ToolCalls → tool_calls."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Expressions:
    """Reads one pipeline.

    Args:
        text: of the action.
        scope: where it stands.
    """

    def __init__(self, text: str, scope: Scope):
        self._scope, self._tokens, self._depth = scope, list[tuple[str, str]](), 0
        at = 0
        text = text.strip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise Unsupported(f"has {text[at : at + 40]!r}, which is unsupported")
            # Fields that touch what stands before them belong to it.
            kind = match.lastgroup
            if kind == "fields" and at and not text[match.start()].isspace():
                kind = "more"
            self._tokens.append((kind, match[match.lastgroup]))
            at = match.end()

    def whole(self) -> str:
        """The pipeline, and nothing after it."""
        value = self._pipeline()
        if self._tokens:
            raise Unsupported(f"has {self._tokens[0][1][:40]!r} where an action should end")
        return value

    def _pipeline(self) -> str:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unsupported("is nested too deeply")
        value = self._command([])
        while self._next() == ("sign", "|"):
            self._tokens.pop(0)
            value = self._command([value])
        self._depth -= 1
        return value

    def _next(self) -> tuple[str, str]:
        return self._tokens[0] if self._tokens else ("", "")

    def _command(self, piped: list[str]) -> str:
        kind, word = self._next()
        if kind == "word" and word not in _CONSTANTS:
            self._tokens.pop(0)
            args = []
            while self._next()[0] and self._next() not in (("sign", "|"), ("sign", ")")):
                args.append(self._operand())
            return self._call(word, [*args, *piped])
        if piped:
            raise Unsupported(f"pipes into {word[:40]!r}, which is no function")
        return self._operand()

    def _operand(self) -> str:
        kind, text = self._tokens.pop(0) if self._tokens else ("", "")
        if kind == "text":
            value = literal(_unquoted(text))
        elif kind == "number":
            value = text
        elif kind == "variable":
            if text[1:] not in self._scope.variables:
                raise Unsupported(f"reads {text}, which it never declared")
            value = self._scope.variables[text[1:]]
        elif kind == "fields":
            value = _fields(self._scope.dot, text)
        elif kind == "dot":
            value = self._scope.dot
        elif kind == "word" and text in _CONSTANTS:
            value = _CONSTANTS[text]
        elif (kind, text) == ("sign", "("):
            value = f"({self._pipeline()})"
            if self._next() != ("sign", ")"):
                raise Unsupported("has a bracket that does not close")
            self._tokens.pop(0)
        else:
            raise Unsupported(f"has {text[:40]!r} where a value should be")
        while self._next()[0] == "more":
            value = _fields(value, self._tokens.pop(0)[1])
        return value

    def _call(self, name: str, args: list[str]) -> str:
        n = len(args)
        if name in ("and", "or") and n:
            return "(" + f" {name} ".join(args) + ")"
        if name == "not" and n == 1:
            return f"(not {args[0]})"
        if name == "eq" and n > 1:
            return "(" + " or ".join(f"{args[0]} == {other}" for other in args[1:]) + ")"
        if name in _COMPARED and n == 2:
            return f"({args[0]} {_COMPARED[name]} {args[1]})"
        if name == "len" and n == 1:
            return f"(({args[0]} or []) | length)"
        if name == "index" and n > 1:
            return args[0] + "".join(f"[{arg}]" for arg in args[1:])
        if name == "slice" and 1 < n < 4:
            return f"{args[0]}[{':'.join([*args[1:], ''][:2])}]"
        if name in ("json", "toJson") and n == 1:
            return f"({args[0]} | tojson(separators=(',', ':')))"
        if name == "print" and n == 1:
            return args[0]
        if name == "currentDate" and n == 0:
            return "strftime_now('%Y-%m-%d')"
        raise Unsupported(f"calls {name[:40]!r} with {n} values, which is unsupported")


def _fields(value: str, fields: str) -> str:
    return value + "".join(f"[{literal(snake(name))}]" for name in fields[1:].split("."))


def _unquoted(text: str) -> str:
    if text[0] == "`":
        return text[1:-1]
    try:
        return json.loads(text, strict=False)
    except ValueError:
        raise Unsupported(f"has the text {text[:40]}, whose escapes are unsupported") from None
