"""JSON schemas as grammars take them: closed objects, compact text, resolved references.

Closed objects have no keys but those that they list. A schema and all that applies to the same
value (`allOf`, `anyOf`, `oneOf`, `$ref`) are closed together, as `unevaluatedProperties: false` at
the value would: each of them takes the keys of all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from .bounds import limits
from .errors import GrammarError

__all__ = ["COMPACT", "closed"]

_LONGEST = 2000  # characters of a reference that is looked up, and of the names it is relative to
_Place = tuple[str, str]  # the "$id" of a schema, and an "$anchor" or "" in it


class References:
    """The references of a schema: by path, by "$anchor", and by "$id" with either.

    Args:
        root: the schema.
    """

    def __init__(self, root: Any):
        self._places = dict[_Place, Any]()
        self._bases = dict[int, str | None]()  # of each schema with a reference
        self._targets = dict[_Place, Any]()
        self.patterns: tuple[dict[str, Any], ...] = ()  # all schemas that have one
        self._read(root)

    def target(self, part: dict[str, Any]) -> Any:
        """The schema that the "$ref" of a part leads to, or None if that is not known."""
        reference, base = part["$ref"], self._bases.get(id(part))
        if base is None or len(reference) > _LONGEST:
            return None
        if (base, reference) not in self._targets:
            self._targets[base, reference] = self._resolved(base, reference)
        return self._targets[base, reference]

    def _resolved(self, base: str, reference: str) -> Any:
        resource, fragment = _joined(base, reference)
        fragment = unquote(fragment)
        if not fragment.startswith("/"):
            return self._places.get((resource, fragment))
        target = self._places.get((resource, ""))
        for name in fragment.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                target = target.get(name) if isinstance(target, dict) else None
        return target

    def _read(self, root: Any) -> None:
        patterns = list[dict[str, Any]]()
        self._places["", ""] = root
        todo: list[tuple[Any, str | None]] = [(root, "")]
        while todo:
            part, base = todo.pop()
            if isinstance(part, dict):
                base = self._named(part, base)
                if isinstance(part.get("pattern"), str):
                    patterns.append(part)
                if isinstance(part.get("$ref"), str):
                    self._bases[id(part)] = base
                todo += [(child, base) for child in part.values()]
            elif isinstance(part, list):
                todo += [(child, base) for child in part]
        self.patterns = tuple(patterns)

    def _named(self, part: dict[str, Any], base: str | None) -> str | None:
        """Notes the names of a part, and returns the one that its references are relative to."""
        name, anchor = part.get("$id"), part.get("$anchor")
        if isinstance(name, str):
            if base is None or len(name) + len(base) > _LONGEST:
                return None
            base, fragment = _joined(base, name)
            self._note((base, fragment), part)
        if isinstance(anchor, str) and base is not None and len(anchor) <= _LONGEST:
            self._note((base, anchor), part)
        return base

    def _note(self, place: _Place, part: dict[str, Any]) -> None:
        # Two of a name may be a schema and an example that looks like one.
        same = self._places.setdefault(place, part) is part
        if not same:
            self._places[place] = None


def _joined(base: str, reference: str) -> _Place:
    """The schema and the place in it that a reference names."""
    if reference.startswith("#"):
        return base, reference[1:]
    try:
        resource, fragment = urldefrag(urljoin(base, reference))
    except ValueError:  # no URL
        return reference, ""
    return resource, fragment


COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""llguidance's options for JSON on one line: a space at most, after a colon or a comma."""

_COPY = 1000  # characters that take as long as the copy of a definition
_KEYED = ("properties", "patternProperties")
_CHILDREN = ("items", "prefixItems", "additionalItems", "additionalProperties", "contains")
_DEFINED = ("$defs", "definitions", "$id", "$anchor")  # references lead to "$defs" of our own
# The keyword and the name or pattern of each key that a value may have; None for any keys.
_Keys = dict[tuple[str, str], None] | None


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy in which objects that list properties take no others.

    Objects stay open that say so by `additionalProperties`, and those without `properties` and
    `patternProperties`; empty `properties` close them, as in llama.cpp. Names that are required are
    listed with the others. Definitions in use move to the root's "$defs".

    Raises:
        GrammarError: it is nested too deeply, refers to itself at one value, combines what is no
            list, or would have more than `limits.grammar_characters`.
    """
    try:
        return _Closing(schema).closed()
    except RecursionError:
        raise GrammarError("this JSON schema is nested too deeply, or its references are") from None


class _Closing:
    def __init__(self, root: dict[str, Any]):
        self._root, self._references = root, References(root)
        self._left = limits.grammar_characters
        self._keys = dict[int, _Keys]()  # by the id of a schema
        self._copied = list[int]()  # ids of the definitions that are being copied
        self._names = dict[tuple[int, bool], str]()  # of definitions: closed ones and open ones
        self._pending = list[tuple[str, Any, _Keys]]()

    def closed(self) -> dict[str, Any]:
        whole, definitions = self._closed(self._root, {}), dict[str, Any]()
        while self._pending:
            name, schema, others = self._pending.pop()
            definitions[name] = self._closed(schema, others)
        return {**whole, "$defs": definitions} if definitions else whole

    def _closed(self, schema: Any, others: _Keys) -> Any:
        """Closes a schema, and those of the values within.

        Args:
            others: keys of what applies to the same value besides.
        """
        if not isinstance(schema, dict):
            return schema
        made = {name: value for name, value in schema.items() if name not in _DEFINED}
        for name in _KEYED:
            if isinstance(children := made.get(name), dict):
                made[name] = {key: self._closed(child, {}) for key, child in children.items()}
        for name in _CHILDREN:
            child = made.get(name)
            made |= {name: self._each(child, {})} if isinstance(child, list) else {}
            made |= {name: self._closed(child, {})} if isinstance(child, dict) else {}
        groups = self._groups(schema)
        keys = [others, _listed(schema), *(self._together(group) for _, group in groups)]
        if "allOf" in made:
            made["allOf"] = []
        for (name, group), around in zip(groups, islice(self._others(keys), 2, None), strict=True):
            if name == "allOf":
                made["allOf"].append(self._closed(group[0], around))
            elif name != "$ref":
                made[name] = self._each(group, around)
            elif around:
                del made["$ref"]
                made.setdefault("allOf", []).append(self._copy(group[0], around))
            else:
                made["$ref"] = self._defined(group[0], around)
        every = self._union(keys)
        if every is not None and _closes(schema):
            self._close(made, every)
        return made

    def _each(self, schemas: list[Any], others: _Keys) -> list[Any]:
        return [self._closed(schema, others) for schema in schemas]

    def _close(self, made: dict[str, Any], keys: dict[tuple[str, str], None]) -> None:
        made["additionalProperties"] = False
        for name, key in keys:
            listed = made.setdefault(name, {})
            if isinstance(listed, dict) and key not in listed:
                self._charge(len(key))
                listed[key] = True

    def _copy(self, schema: Any, around: _Keys) -> Any:
        """A definition that takes the keys of its neighbours."""
        if id(schema) in self._copied:
            raise GrammarError("this JSON schema cannot be used: a reference leads to itself")
        self._charge(_COPY + len(json.dumps(schema)))
        self._copied.append(id(schema))
        made = self._closed(schema, around)
        self._copied.pop()
        return made

    def _defined(self, schema: Any, around: _Keys) -> str:
        """The reference to a definition that has no neighbours, or whose neighbours are open."""
        key = id(schema), around is None
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._pending.append((self._names[key], schema, around))
        return f"#/$defs/{self._names[key]}"

    def _groups(self, schema: dict[str, Any]) -> list[tuple[str, list[Any]]]:
        """The alternatives that apply to the same value, with the keyword of each group."""
        groups = list[tuple[str, list[Any]]]()
        for name in ("allOf", "anyOf", "oneOf"):
            members = schema.get(name, [])
            if not isinstance(members, list):
                raise GrammarError(f"this JSON schema cannot be used: {name} is no list")
            each = [[member] for member in members] if name == "allOf" else [members]
            groups += [(name, group) for group in each if name in schema]
        if isinstance(schema.get("$ref"), str):
            target = self._references.target(schema)
            groups += [] if target is None else [("$ref", [target])]
        return groups

    def _together(self, schemas: list[Any]) -> _Keys:
        """The keys that any of them lists, with what applies to the same value."""
        for schema in schemas:
            if isinstance(schema, dict) and id(schema) not in self._keys:
                self._keys[id(schema)] = {}  # for schemas that refer to themselves
                groups = [self._together(group) for _, group in self._groups(schema)]
                self._keys[id(schema)] = self._union([_listed(schema), *groups])
        return self._union([self._keys[id(part)] for part in schemas if isinstance(part, dict)])

    def _others(self, keys: list[_Keys]) -> Iterator[_Keys]:
        """For each element, the union of all others."""
        behind = list[_Keys]([{}])
        for some in reversed(keys[1:]):
            behind.append(self._union([some, behind[-1]]))
        before: _Keys = {}
        for some in keys:
            yield self._union([before, behind.pop()])
            before = None if before is None or some is None else before | some

    def _union(self, keys: Iterable[_Keys]) -> _Keys:
        union = dict[tuple[str, str], None]()
        for some in keys:
            if some is None:
                return None
            self._charge(len(some))
            union |= some
        return union

    def _charge(self, characters: int) -> None:
        self._left -= characters + 1
        if self._left < 0:
            raise GrammarError(
                "this JSON schema cannot be used: it combines too many schemas with one another"
            )


def _listed(schema: dict[str, Any]) -> _Keys:
    """The keys that a schema itself lists; None if it is open on purpose."""
    if schema.get("additionalProperties", False) is not False:
        return None
    keys = [(name, key) for name in _KEYED for key in _dict(schema, name)]
    required = schema.get("required")
    if isinstance(required, list) and not _dict(schema, "patternProperties"):
        keys += [("properties", name) for name in required if isinstance(name, str)]
    return dict.fromkeys(keys)


def _closes(schema: dict[str, Any]) -> bool:
    return "additionalProperties" not in schema and any(
        isinstance(schema.get(name), dict) for name in _KEYED
    )


def _dict(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return value if isinstance(value := schema.get(name), dict) else {}
