"""Checks that run before a template calls a method or a filter.

A check takes the arguments, the object itself first, and returns the arguments to call with: to
weigh an iterator means to read it, which is possible only once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .limits import costs, each, printable

Check = Callable[..., "tuple[Any, ...]"]


def data(*args: Any, **_: Any) -> tuple[Any, ...]:
    """For functions that need no more than a value that they can print."""
    printable(args[0])
    return args


def _widths(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    printable(args[0])
    for value in (*args[1:], *kwargs.values()):
        costs().width(value)
    return args


def _expandtabs(*args: Any, tabsize: Any = 8) -> tuple[Any, ...]:
    text, size = args[0], args[1] if len(args) > 1 else tabsize
    costs().need(len(text) + text.count("\t") * costs().width(size))
    return args


def _indent(*args: Any, width: Any = 4, **_: Any) -> tuple[Any, ...]:
    text, width = str(printable(args[0])), args[1] if len(args) > 1 else width
    size = len(width) if isinstance(width, str) else costs().width(width)
    costs().need(len(text) + (text.count("\n") + 1) * size)
    return args


def _replace(*args: Any, **_: Any) -> tuple[Any, ...]:
    printable(args[0])
    if len(args) >= 3:
        costs().replaced(str(args[0]), str(args[1]), str(args[2]))
    return args


def _join(separator: str, values: Any = ()) -> tuple[Any, ...]:
    return separator, costs().joined(separator, values)


def _join_filter(values: Any, *rest: Any, **kwargs: Any) -> tuple[Any, ...]:
    separator = rest[0] if rest else kwargs.get("d", "")
    return (costs().joined(str(separator), values), *rest)


def _sum_filter(values: Any, *rest: Any, **kwargs: Any) -> tuple[Any, ...]:
    items = costs().joined("", values)
    start = rest[1] if len(rest) > 1 else kwargs.get("start", 0)
    if not isinstance(start, (int, float)):
        # Adding a list copies the sum of those before it.
        costs().steps(len(items) * sum(map(costs().weigh, items)))
    return (items, *rest)


def _searches(text: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """For functions that compare each character with each in the worst case."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, str):
            costs().steps(len(str(text)) * len(value))
    printable(text)
    return (text, *args)


def _unique(values: Any, *rest: Any, **_: Any) -> tuple[Any, ...]:
    # Numbers may be chosen so that each is compared with all before it.
    return (each(values), *rest)


def _printf(text: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    costs().printf(str(printable(text)), kwargs or args)
    return (text, *args)


def _methods(plain: str, **checked: Check) -> dict[str, Check | None]:
    return {**dict.fromkeys(plain.split()), **checked}


# Methods that templates may call, by the type of their object, each with its check.
METHODS: tuple[tuple[type | tuple[type, ...], dict[str, Check | None]], ...] = (
    (
        str,
        _methods(
            "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal "
            "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper lower "
            "partition removeprefix removesuffix split splitlines startswith swapcase title upper",
            center=_widths,
            ljust=_widths,
            rjust=_widths,
            zfill=_widths,
            expandtabs=_expandtabs,
            replace=_replace,
            join=_join,
            strip=_searches,
            lstrip=_searches,
            rstrip=_searches,
            rfind=_searches,
            rindex=_searches,
            rpartition=_searches,
            rsplit=_searches,
        ),
    ),
    (dict, _methods("copy get items keys values")),
    ((list, tuple), _methods("copy count index")),
    (float, _methods("is_integer")),
)

FILTER_CHECKS: dict[str, Check] = {
    "batch": _widths,
    "center": _widths,
    "format": _printf,
    "indent": _indent,
    "replace": _replace,
    "round": _widths,
    "slice": _widths,
    "sum": _sum_filter,
    "trim": _searches,
    "unique": _unique,
    "join": _join_filter,
}
