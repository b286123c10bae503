"""Values of the fields that a declaration names: how their text is read, and put into shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ...errors import TemplateError
from .literals import Literals
from .pattern import Pattern, each
from .values import Malformed

_PLACE = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def _stripped(text: str, given: Mapping[str, Any]) -> str:
    return text.strip() if given.get("strip", True) else text


def _boolean(text: str, given: Mapping[str, Any]) -> bool:
    return _stripped(text, given).lower() in ("true", "1")


def _json(text: str, given: Mapping[str, Any]) -> Any:
    quotes = given.get("string_delims", ())
    try:
        if not (quotes or given.get("unquoted_keys")):
            return json.loads(text)
        values = Literals(text, *map(tuple, quotes))
        value = values.value()
        values.end()
        return value
    except (ValueError, Malformed):
        if given.get("allow_non_json"):
            return _stripped(text, given)
        raise


def _tags(text: str, given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    repeated: set[str] = set()
    for groups in each(given["tag_pattern"], text):
        key, value = groups["key"], _inner(groups.get("value", ""), given)
        if key in found and given.get("merge_duplicates"):
            found[key] = [*found[key], value] if key in repeated else [found[key], value]
            repeated.add(key)
        else:
            found[key] = value
    return found


def _lines(text: str, given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in text.split(given.get("line_sep", "\n")):
        key, sign, value = _stripped(line, given).partition(given.get("kv_sep", ":"))
        if sign:
            found[_stripped(key, given)] = _inner(_stripped(value, given), given)
    return found


def _inner(text: str, given: Mapping[str, Any]) -> Any:
    parser = given.get("value_parser")
    if parser is None:
        return text
    return PARSERS[parser.get("name", "text")](text, parser.get("args", {}))


PARSERS: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "text": _stripped,
    "int": lambda text, given: int(_stripped(text, given)),
    "float": lambda text, given: float(_stripped(text, given)),
    "bool": _boolean,
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
_ARGUMENTS = {
    "json": {"string_delims", "unquoted_keys", "allow_non_json"},
    "xml-inline": {"tag_pattern", "value_parser", "merge_duplicates"},
    "kv-lines": {"line_sep", "kv_sep", "value_parser"},
}


def checked_arguments(parser: Any, given: Any, where: str) -> dict[str, Any]:
    """Arguments of a parser, their pattern compiled.

    Raises:
        TemplateError: the parser or an argument of it is unknown, or malformed.
    """

    def refuse(why: str) -> NoReturn:
        raise TemplateError(f"{where}: {why}")

    if not isinstance(parser, str) or parser not in PARSERS:
        refuse(f"the content parser {parser!r:.80} is unknown; known are {', '.join(PARSERS)}")
    if not isinstance(given, Mapping):
        refuse("content_args is an object")
    if unknown := set(given) - _ARGUMENTS.get(parser, set()) - {"strip"}:
        refuse(f"{parser} has no argument {sorted(unknown)[0]!r}")
    made = dict(given)
    for key in ("line_sep", "kv_sep"):
        if key in made and not (isinstance(made[key], str) and made[key]):
            refuse(f"{key} is a text")
    quotes = made.get("string_delims", [])
    pairs = isinstance(quotes, list) and all(isinstance(q, list) and len(q) == 2 for q in quotes)
    if not pairs or not all(isinstance(text, str) and text for pair in quotes for text in pair):
        refuse("string_delims is a list of pairs of texts")
    if parser == "xml-inline":
        pattern = Pattern.of(made.get("tag_pattern"), f"{where}: tag_pattern")
        if "key" not in pattern.names:
            refuse("tag_pattern needs a group named key")
        made["tag_pattern"] = pattern
    if (inner := made.get("value_parser")) is not None:
        if not isinstance(inner, Mapping) or set(inner) - {"name", "args"}:
            refuse("value_parser is an object with name and args")
        name = inner.get("name", "text")
        args = checked_arguments(name, inner.get("args", {}), f"{where}: value_parser")
        made["value_parser"] = {"name": name, "args": args}
    return made


def check_transform(transform: Any, where: str) -> None:
    """Raises `TemplateError` if a text of a transform mixes a place with other text."""
    if isinstance(transform, Mapping):
        transform = list(transform.values())
    if isinstance(transform, list):
        for part in transform:
            check_transform(part, where)
    elif (
        isinstance(transform, str) and _PLACE.search(transform) and not _PLACE.fullmatch(transform)
    ):
        raise TemplateError(f"{where}: the transform {transform!r:.80} mixes a place with text")


def transformed(transform: Any, scope: Mapping[str, Any]) -> Any:
    """The transform with values in its places.

    Raises:
        Malformed: a place has no value.
    """
    if isinstance(transform, Mapping):
        return {key: transformed(part, scope) for key, part in transform.items()}
    if isinstance(transform, list):
        return [transformed(part, scope) for part in transform]
    found = _PLACE.fullmatch(transform) if isinstance(transform, str) else None
    if not found:
        return transform
    value: Any = scope
    for key in found[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise Malformed
        value = value[key]
    return value
