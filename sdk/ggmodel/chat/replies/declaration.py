"""A checkpoint's declaration of its replies, `response_template`, and the parser that follows it.

As in transformers it names the fields of a message, and the texts or patterns that open and close
each. The field without an opening has all that is in no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import TemplateError
from ..template import REPLIES_KEY
from .deltas import Content, Delta, Reasoning, ToolCall, Writer
from .pattern import Match, Pattern, Search, matches
from .streams import JsonCalls
from .tool_calls import arguments_of
from .values import (
    PARSERS,
    Malformed,
    Tools,
    cast,
    check_transform,
    checked_arguments,
    dumped,
    transformed,
)

_WHERE = "the response_template"
_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD_KEYS = {
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats"),
    *("join", "optional", "transform", "transform_each"),
}


@dataclass(frozen=True)
class Field:
    """A field of a message.

    Attributes:
        open, close: None for a field that has all the rest, or goes on to the end.
        content: the parser of its text. args: of that parser.
        join: stands between the texts of a field that comes repeatedly.
        each: `transform` is meant for each item of the value.
    """

    name: str
    open: Pattern | None
    close: Pattern | None
    content: str
    args: dict[str, Any]
    join: str | None
    transform: Any
    each: bool


@dataclass(frozen=True)
class Declaration:
    """The fields of a message, and the beginning of a reply within a prompt."""

    fields: tuple[Field, ...]
    anchor: Pattern

    @classmethod
    def of(cls, declared: Any) -> Declaration:
        """Reads a declaration.

        Raises:
            TemplateError: it has unknown keys, or values that make no sense.
        """
        _check(declared, _KEYS, _WHERE)
        if declared.get("version", 1) != 1:
            raise TemplateError(f"{_WHERE} has the version {declared['version']!r:.20}; known is 1")
        fields = declared.get("fields")
        if not isinstance(fields, Mapping) or not fields:
            raise TemplateError(f"{_WHERE} has no fields")
        made = tuple(_field(str(name), field) for name, field in fields.items())
        rest = [field.name for field in made if field.open is None]
        if len(rest) > 1:
            raise TemplateError(f"{_WHERE}: only one field may lack open, not {', '.join(rest)}")
        anchor = _pattern(declared, "start_anchor", "start_anchor_pattern", _WHERE)
        if anchor is None:
            raise TemplateError(f"{_WHERE} has no start_anchor")
        return cls(made, anchor)

    @property
    def rest(self) -> Field | None:
        """The field that has all that is in no other."""
        return next((field for field in self.fields if field.open is None), None)

    def begun(self, ending: str) -> str:
        """The part of a prompt's end that belongs to the reply."""
        ends = [match.end for match in matches(self.anchor, ending)]
        return ending[max(ends, default=0) :]


def read_declared(text: Any) -> Mapping[str, Any]:
    """The declaration that a file holds as JSON text.

    Raises:
        TemplateError: it is no JSON.
    """
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"{_WHERE} ({REPLIES_KEY}) is no JSON: {error}") from None


def _field(name: str, declared: Any) -> Field:
    where = f"{_WHERE}, field {name!r}"
    _check(declared, _FIELD_KEYS, where)
    join, transform, each = map(declared.get, ("join", "transform", "transform_each"))
    if join is not None and not (isinstance(join, str) and declared.get("repeats")):
        raise TemplateError(f"{where}: join is a text, for a field that repeats")
    if each not in (None, True, False) or (each and transform is None):
        raise TemplateError(f"{where}: transform_each is true or false, and needs a transform")
    check_transform(transform, where)
    opens = _pattern(declared, "open", "open_pattern", where)
    closes = _pattern(declared, "close", "close_pattern", where)
    names = [name for pattern in (opens, closes) if pattern for name in pattern.names]
    if names and transform is None:
        raise TemplateError(f"{where}: the group {names[0]!r} needs a transform that uses it")
    content = declared.get("content", "text")
    args = checked_arguments(content, declared.get("content_args", {}), where)
    return Field(name, opens, closes, content, args, join, transform, bool(each))


def _check(declared: Any, keys: set[str], where: str) -> None:
    if not isinstance(declared, Mapping):
        raise TemplateError(f"{where} is an object, not {declared!r:.80}")
    if unknown := set(declared) - keys:
        raise TemplateError(f"{where} has the unknown key {min(map(str, unknown))!r}")


def _pattern(declared: Mapping[str, Any], text: str, pattern: str, where: str) -> Pattern | None:
    """The pattern of one key, or of the texts of another."""
    if text in declared and pattern in declared:
        raise TemplateError(f"{where} has both {text} and {pattern}")
    if pattern in declared:
        return Pattern.of(declared[pattern], f"{where}: {pattern}")
    if text not in declared:
        return None
    texts = declared[text] if isinstance(declared[text], list) else [declared[text]]
    if not texts or not all(isinstance(t, str) and t for t in texts):
        raise TemplateError(f"{where}: {text} is a text, or a list of them")
    ordered = sorted(texts, key=len, reverse=True)
    return Pattern.of("|".join(map(re.escape, ordered)), f"{where}: {text}")


_KINDS = {
    **{"content": Content, "reasoning_content": Reasoning},
    **{"thinking": Reasoning, "reasoning": Reasoning},
}
_CALLS = "tool_calls"
_SLICE = 256  # characters; those after a mark are looked at anew for the next one


class DeclaredParser:
    """Takes a reply in pieces and gives its parts; see `ReplyFormat.parser`."""

    def __init__(self, declaration: Declaration, tools: Tools, ending: str = ""):
        self._declaration, self._tools = declaration, tools
        self._rest = declaration.rest
        self._writer = Writer()
        self._writer.turn(*self._kind(self._rest))
        self._held: list[str] = []  # text from `_place` on, not decided upon
        self._place = 0
        self._joined: set[str] = set()
        self._body: list[str] = []
        self._is_cut = False
        self._captures: dict[str, str] = {}
        self._begin(self._rest)
        if begun := declaration.begun(ending):
            self.feed(begun)
            self._writer.forget()

    def feed(self, text: str) -> list[Delta]:
        """The parts that a piece of the reply adds."""
        for at in range(0, len(text), _SLICE):
            piece = text[at : at + _SLICE]
            self._held.append(piece)
            for _, search in self._watched:
                search.feed(piece)
            self._run(final=False)
        return self._writer.take()

    def end(self, cut: bool = False) -> list[Delta]:
        """The rest, when the reply is over; see `ReplyParser.end`."""
        self._is_cut = cut
        for _, search in self._watched:
            search.finish()
        self._run(final=True)
        self._close("")
        self._writer.turn()
        return self._writer.take()

    def _begin(self, field: Field | None) -> None:
        """Watches for the ends of a field, which comes now."""
        self._field = field
        self._watched: list[tuple[Field, Search]] = []
        if field is self._rest:
            others = [f for f in self._declaration.fields if f.open is not None]
            self._watched += [(f, Search(f.open, self._place)) for f in others if f.open]
        if field is not None and field.close is not None:
            self._watched.append((field, Search(field.close, self._place)))

    def _run(self, final: bool) -> None:
        while (best := self._best(final)) is not None:
            (field, match), text = best, self._taken(best[1].end)
            self._add_text(text[: len(text) - (match.end - match.start)])
            marker = text[len(text) - (match.end - match.start) :]
            opens = self._field is self._rest and field is not self._rest
            if not opens and not marker:
                break  # nothing closes nothing, at the end
            self._turn(field, match, text, marker, opens)
            held = "".join(self._held)
            self._held = [held] if held else []
            for _, search in self._watched:
                search.feed(held)
                if final:
                    search.finish()
        hold = (
            self._end() if final else min((s.hold for _, s in self._watched), default=self._end())
        )
        if hold > self._place:
            self._add_text(self._taken(hold))

    def _turn(self, field: Field, match: Match, text: str, marker: str, opens: bool) -> None:
        """A mark came: the field is another now."""
        first = match.end - len(text)
        groups = {name: text[a - first : b - first] for name, (a, b) in match.groups.items()}
        if opens:
            self._close("")
            self._open(field, groups, marker)
        else:
            self._captures |= groups if self._field is not self._rest else {}
            self._close(marker)
            self._open(self._rest, {}, "")

    def _open(self, field: Field | None, groups: dict[str, str], marker: str) -> None:
        self._captures, self._body = groups, []
        self._begin(field)
        if field is None or field.name != _CALLS:
            self._writer.turn(*self._kind(field))
        else:
            self._body.append(marker)
        if field is not None and field.join is not None:
            if field.name in self._joined:
                self._writer.join(field.join)
            self._joined.add(field.name)

    def _close(self, marker: str) -> None:
        """The field is over; calls are read."""
        field = self._field
        if field is None or field.name != _CALLS or field is self._rest:
            return
        body, self._body = "".join(self._body[1:]), [*self._body, marker]
        try:
            for call in self._calls(field, body):
                self._writer.call(call)
        except (Malformed, ValueError, RecursionError):
            if self._is_cut:
                JsonCalls(self._writer).feed(body)
            else:
                self._writer.add("".join(self._body))

    def _calls(self, field: Field, body: str) -> list[ToolCall]:
        value = PARSERS[field.content](body, field.args)
        if field.transform is not None and field.each:
            if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
                raise Malformed
            value = [transformed(field.transform, {**self._captures, **v}) for v in value]
        elif field.transform is not None:
            value = transformed(field.transform, {**self._captures, "content": value})
        return [self._call(item) for item in (value if isinstance(value, list) else [value])]

    def _call(self, value: Any) -> ToolCall:
        inner = value.get("function", value) if isinstance(value, Mapping) else None
        if not isinstance(inner, Mapping):
            raise Malformed
        name, arguments = inner.get("name"), inner.get("arguments", {})
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise Malformed
        id = value.get("id", "")
        id = id if isinstance(id, str) and id.isprintable() else ""
        if isinstance(arguments, str):
            return ToolCall(name, arguments_of(arguments), id)
        if not isinstance(arguments, Mapping):
            raise Malformed
        schemas = self._tools.properties(name)
        made = {
            k: cast(v, schemas.get(k)) if isinstance(v, str) else v for k, v in arguments.items()
        }
        return ToolCall(name, dumped(made), id)

    def _best(self, final: bool) -> tuple[Field, Match] | None:
        """The first mark; of those at one place the longest, and one that opens."""
        candidates = [(field, s.match) for field, s in self._watched if s.match is not None]
        if not candidates:
            return None

        def order(candidate: tuple[Field, Match]) -> tuple[int, int, bool, str]:
            field, match = candidate
            return match.start, match.start - match.end, field is self._field, field.name

        best = min(candidates, key=order)
        waiting = [s.hold for _, s in self._watched if s.match is None]
        return best if final or best[1].start < min(waiting, default=best[1].start + 1) else None

    def _add_text(self, text: str) -> None:
        field = self._field
        if field is None or not text:
            return
        if field.name == _CALLS and field is not self._rest:
            self._body.append(text)
        elif field.name in _KINDS:
            self._writer.add(text)

    def _taken(self, place: int) -> str:
        """The held text up to a place, which is held no longer."""
        held = "".join(self._held)
        text, rest = held[: place - self._place], held[place - self._place :]
        self._held, self._place = [rest] if rest else [], place
        return text

    def _end(self) -> int:
        return self._place + sum(map(len, self._held))

    def _kind(self, field: Field | None) -> tuple[Any, bool]:
        """The kind of a field's text, and whether space around it counts."""
        kind = _KINDS.get(field.name, Content) if field else Content
        return kind, field is not None and field.args.get("strip", True) is False
