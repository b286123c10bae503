"""Values in replies: arguments of tools by their types, literals, fields of declarations.

Literals look like Python's, or like JSON with other quotes and bare keys.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from ...errors import TemplateError
from .pattern import Pattern, matches


class Malformed(Exception):
    """The text is no call; never leaves the parser, which gives the text as content."""


class Tools:
    """Functions by name.

    Args:
        tools: JSON schemas of functions as OpenAI spells them, with or without their envelope.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None = None):
        self.parameters: dict[str, Mapping[str, Any]] = {}
        self.strict: dict[str, bool] = {}
        for tool in tools or ():
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
                schema = function.get("parameters")
                self.parameters[name] = schema if isinstance(schema, Mapping) else {}
                self.strict[name] = function.get("strict") is True

    def __contains__(self, name: object) -> bool:
        return name in self.parameters

    def properties(self, name: str) -> Mapping[str, Any]:
        """The schemas of a function's parameters; {} if unknown."""
        schemas = self.parameters.get(name, {}).get("properties")
        return schemas if isinstance(schemas, Mapping) else {}


def types(schema: Any) -> list[str]:
    """The types that a schema names, in its order; [] if it names none."""
    if not isinstance(schema, Mapping):
        return []
    named = schema.get("type")
    listed = named if isinstance(named, list) else [named]
    names = [name for name in listed if isinstance(name, str)]
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else ():
            names += types(choice)
    if not names:
        options = schema.get("enum", [schema["const"]] if "const" in schema else [])
        names = [_type(option) for option in options] if isinstance(options, list) else []
    if schema.get("nullable") is True:
        names.append("null")
    return list(dict.fromkeys(names))


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "null" if value is None else "object")


def cast(text: str, schema: Any) -> Any:
    """The value that a text means by its schema: the first of its types but "string" that the text
    fits; the text itself where none does, or the schema is unknown. So does transformers."""
    for name in types(schema):
        try:
            return _CASTS[name](text)
        except (KeyError, ValueError, OverflowError, RecursionError):
            continue
    return text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return int(number) if number.is_integer() and "." not in text else number


def _of(words: Mapping[str, Any], text: str) -> Any:
    word = text.strip()
    if word not in words:
        raise ValueError
    return words[word]


def _json(text: str, kind: type) -> Any:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError
    return value


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_CASTS = {
    "integer": _integer,
    "number": _number,
    "boolean": lambda text: _of(_BOOLEANS, text.lower()),
    "null": lambda text: _of({"null": None, "None": None}, text),
    "object": lambda text: _json(text, dict),
    "array": lambda text: _json(text, list),
}


def dumped(arguments: Mapping[str, Any]) -> str:
    """JSON text of an object.

    Raises:
        Malformed: JSON has no such value, or it is nested too deeply.
    """
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # Half of a pair of surrogates cannot be sent, but its escape can.
        return text if text.isprintable() or _sendable(text) else json.dumps(arguments)
    except (ValueError, RecursionError) as error:
        raise Malformed from error


def _sendable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


DEEPEST = 200  # brackets within each other
BRACKETS = {"[": "]", "(": ")", "{": "}"}
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

    def call(self) -> tuple[str, dict[str, Any]]:
        """`name(key=value, …)`."""
        name = self.match(_NAME)
        self.need("(")
        return name, dict(self.item("=") for _ in self._items(")"))

    def item(self, sign: str) -> tuple[str, Any]:
        """A key, "=" or ":", and a value."""
        return self.key(sign), self.value()

    def key(self, sign: str) -> str:
        """A key and "=" or ":"."""
        text = self._quoted() if sign == ":" else None
        key = self.match(_NAME if sign == "=" else _KEY).strip() if text is None else text
        self.need(sign)
        return key

    def value(self) -> Any:
        if (text := self._quoted()) is not None:
            return text
        close = BRACKETS.get(self.text[self.at : self.at + 1])
        if close is None:
            return _word(self.match(_WORD))
        self.at += 1
        self._depth += 1
        if self._depth > DEEPEST:
            raise Malformed
        if close == "}":
            made: Any = dict(self.item(":") for _ in self._items(close))
        else:
            made = [self.value() for _ in self._items(close)]
        self._depth -= 1
        return made

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
        matched = pattern.match(self.text, self.at)
        if not matched:
            raise Malformed
        self.at = matched.end()
        return matched[0]

    def _items(self, close: str) -> Iterator[None]:
        """Stops before each item of a list, and reads its commas and its end."""
        while not self.took(close):
            yield
            if not self.took(","):
                self.need(close)
                return

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


def _unescaped(match: re.Match[str]) -> str:
    code, sign = match[1] or match[2], match[3]
    return chr(int(code, 16)) if code else _ESCAPES.get(sign, sign if sign in "\\'\"" else match[0])


_PLACE = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def _stripped(text: str, options: Mapping[str, Any]) -> str:
    return text.strip() if options.get("strip", True) else text


def _declared_json(text: str, options: Mapping[str, Any]) -> Any:
    quotes = options.get("string_delims", ())
    try:
        if not (quotes or options.get("unquoted_keys")):
            return json.loads(text)
        values = Literals(text, *map(tuple, quotes))
        value = values.value()
        values.end()
        return value
    except (ValueError, Malformed):
        if options.get("allow_non_json"):
            return _stripped(text, options)
        raise


def _tags(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    repeated: set[str] = set()
    for match in matches(options["tag_pattern"], text):
        groups = {name: text[begin:end] for name, (begin, end) in match.groups.items()}
        key, value = groups["key"], _inner(groups.get("value", ""), options)
        if key in values and options.get("merge_duplicates"):
            values[key] = [*values[key], value] if key in repeated else [values[key], value]
            repeated.add(key)
        else:
            values[key] = value
    return values


def _lines(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for line in text.split(options.get("line_sep", "\n")):
        key, sign, value = _stripped(line, options).partition(options.get("kv_sep", ":"))
        if sign:
            values[_stripped(key, options)] = _inner(_stripped(value, options), options)
    return values


def _inner(text: str, options: Mapping[str, Any]) -> Any:
    parser = options.get("value_parser")
    if parser is None:
        return text
    return PARSERS[parser.get("name", "text")](text, parser.get("args", {}))


PARSERS: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "text": _stripped,
    "int": lambda text, options: int(_stripped(text, options)),
    "float": lambda text, options: float(_stripped(text, options)),
    "bool": lambda text, options: _stripped(text, options).lower() in ("true", "1"),
    "json": _declared_json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
_ARGUMENTS = {
    "json": {"string_delims", "unquoted_keys", "allow_non_json"},
    "xml-inline": {"tag_pattern", "value_parser", "merge_duplicates"},
    "kv-lines": {"line_sep", "kv_sep", "value_parser"},
}


def checked_arguments(parser: Any, arguments: Any, where: str) -> dict[str, Any]:
    """Arguments of a parser, their pattern compiled.

    Raises:
        TemplateError: the parser or an argument of it is unknown, or malformed.
    """

    def refuse(why: str) -> NoReturn:
        raise TemplateError(f"{where}: {why}")

    if not isinstance(parser, str) or parser not in PARSERS:
        refuse(f"the content parser {parser!r:.80} is unknown; known are {', '.join(PARSERS)}")
    if not isinstance(arguments, Mapping):
        refuse("content_args is an object")
    if unknown := set(arguments) - _ARGUMENTS.get(parser, set()) - {"strip"}:
        refuse(f"{parser} has no argument {sorted(unknown)[0]!r}")
    made = dict(arguments)
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
    match = _PLACE.fullmatch(transform) if isinstance(transform, str) else None
    if not match:
        return transform
    value: Any = scope
    for key in match[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise Malformed
        value = value[key]
    return value
