"""Finds the schemas that the references of a JSON schema lead to."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

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
        self._found = dict[_Place, Any]()
        self.patterns: tuple[dict[str, Any], ...] = ()  # all schemas that have one
        self._read(root)

    def target(self, part: dict[str, Any]) -> Any:
        """The schema that the "$ref" of a part leads to, or None if that is not known."""
        reference, base = part["$ref"], self._bases.get(id(part))
        if base is None or len(reference) > _LONGEST:
            return None
        if (base, reference) not in self._found:
            self._found[base, reference] = self._resolved(base, reference)
        return self._found[base, reference]

    def _resolved(self, base: str, reference: str) -> Any:
        resource, fragment = _joined(base, reference)
        fragment = unquote(fragment)
        if not fragment.startswith("/"):
            return self._places.get((resource, fragment))
        found = self._places.get((resource, ""))
        for name in fragment.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found

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
