"""Looks through a JSON schema for what llguidance would get wrong, or take long for."""

from __future__ import annotations

from typing import Any

from ...errors import GrammarError

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_END = 1 << 63  # the first integer beyond 64 bits with a sign
_SIZES = ("minItems", "maxItems", "minLength", "maxLength")
_MOST = 1000
_PLAIN = {*_SIZES, *_BOUNDS} | set(
    "type properties required additionalProperties items enum const anyOf title description "
    "default examples".split()
)


def is_plain(schema: Any) -> bool:
    """Whether a schema says nothing that may cost more than its length."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if not isinstance(part, dict):
            continue
        sizes = [part[name] for name in _SIZES if name in part]
        if not part.keys() <= _PLAIN or any(not _is_small(size) for size in sizes):
            return False
        properties, choices = part.get("properties", {}), part.get("anyOf", [])
        if not isinstance(properties, dict) or not isinstance(choices, list):
            return False
        todo += [*properties.values(), *choices]
        todo += [part.get("items"), part.get("additionalProperties")]
    return True


def _is_small(size: Any) -> bool:
    return isinstance(size, int) and size <= _MOST


def check_numbers(schema: Any) -> None:
    """Refuses numbers that llguidance would replace by others, without a word: it computes with
    64-bit floats, and has integers within 64 bits.

    Raises:
        GrammarError: names the number.
    """
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            todo += part.values()
            kinds = part.get("type")
            whole = "integer" in (kinds if isinstance(kinds, list) else [kinds])
            bounds = [part.get(key) for key in _BOUNDS if whole]
            wrong = [n for n in bounds if isinstance(n, float) and abs(n) >= _END]
        elif isinstance(part, list):
            todo += part
            wrong = []
        else:
            wrong = [part] if type(part) is int and not _is_exact(part) else []
        if wrong:
            raise GrammarError(
                f"this JSON schema cannot be used: {wrong[0]!r:.40} would be rounded; integers in "
                "a schema lie between -2^63 and 2^63, and beyond 2^53 a 64-bit float must hold "
                "them exactly"
            )


def _is_exact(n: int) -> bool:
    """Whether an integer comes back from a 64-bit float. The largest of 64 bits does: the way back
    ends there."""
    return -_END < n < _END and min(int(float(n)), _END - 1) == n
