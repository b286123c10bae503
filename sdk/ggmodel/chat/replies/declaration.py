"""A checkpoint's own declaration of its replies: transformers' `response_template`.

It names the fields of a message, and the texts or patterns that open and close each. The field
without an opening has all that is in no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import TemplateError
from .bodies import check_transform, checked_arguments
from .pattern import Pattern, Search

KEY = "tokenizer.response_template"  # of a GGUF: the declaration as JSON text
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
        at, begin = 0, 0
        while at < len(ending):
            search = Search(self.anchor, at)
            search.feed(ending, at)
            search.finish()
            if search.found is None or search.found.end == at:
                break
            at = begin = search.found.end
        return ending[begin:]


def read_declared(text: Any) -> Mapping[str, Any]:
    """The declaration that a file holds as JSON text.

    Raises:
        TemplateError: it is no JSON.
    """
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"{_WHERE} ({KEY}) is no JSON: {error}") from None


def _field(name: str, given: Any) -> Field:
    where = f"{_WHERE}, field {name!r}"
    _check(given, _FIELD_KEYS, where)
    join, transform, each = given.get("join"), given.get("transform"), given.get("transform_each")
    if join is not None and not (isinstance(join, str) and given.get("repeats")):
        raise TemplateError(f"{where}: join is a text, for a field that repeats")
    if each not in (None, True, False) or (each and transform is None):
        raise TemplateError(f"{where}: transform_each is true or false, and needs a transform")
    check_transform(transform, where)
    opens = _pattern(given, "open", "open_pattern", where)
    closes = _pattern(given, "close", "close_pattern", where)
    names = [name for pattern in (opens, closes) if pattern for name in pattern.names]
    if names and transform is None:
        raise TemplateError(f"{where}: the group {names[0]!r} needs a transform that uses it")
    content = given.get("content", "text")
    args = checked_arguments(content, given.get("content_args", {}), where)
    return Field(name, opens, closes, content, args, join, transform, bool(each))


def _check(given: Any, known: set[str], where: str) -> None:
    if not isinstance(given, Mapping):
        raise TemplateError(f"{where} is an object, not {given!r:.80}")
    if unknown := set(given) - known:
        raise TemplateError(f"{where} has the unknown key {min(map(str, unknown))!r}")


def _pattern(given: Mapping[str, Any], text: str, pattern: str, where: str) -> Pattern | None:
    """The pattern of one key, or of the texts of another."""
    if text in given and pattern in given:
        raise TemplateError(f"{where} has both {text} and {pattern}")
    if pattern in given:
        return Pattern.of(given[pattern], f"{where}: {pattern}")
    if text not in given:
        return None
    texts = given[text] if isinstance(given[text], list) else [given[text]]
    if not texts or not all(isinstance(t, str) and t for t in texts):
        raise TemplateError(f"{where}: {text} is a text, or a list of them")
    ordered = sorted(texts, key=len, reverse=True)
    return Pattern.of("|".join(map(re.escape, ordered)), f"{where}: {text}")
