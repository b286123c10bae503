"""Limits on the time and memory of a chat template.

A template is an untrusted program, and Jinja's sandbox does not limit its costs: `'a' * 10**10`,
`9 ** (9 ** 9)` or three nested loops would take the machine down. A call into C cannot be
interrupted, so every value is bounded before it is made. No single step takes long then, and the
processor's time is checked between steps. Sizes count characters. Each value adds `ITEM`; a
container adds the sizes of its items, repeated ones each time.

A check runs before a template calls a method or a filter. It takes the arguments, the object itself
first, and returns the arguments to call with: to weigh an iterator means to read it, which is
possible only once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType
from typing import Any

from jinja2.exceptions import SecurityError

from ..bounds import Deadline, limits

# Some templates read all earlier messages again for each: a thousand messages take a second.
SECONDS_A_MESSAGE = 0.01
ITEM = 16
WIDTH = 100_000  # of padding and formatting; Jinja's range() has the same limit
STEPS = 1 << 31  # characters that one call compares or copies
BITS = 4096  # of an integer

_FUNCTIONS = (FunctionType, MethodType, BuiltinMethodType, GeneratorType)
_CONVERSION = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")


class TooCostly(Exception):
    """A template takes more time or memory than any template needs."""


class Costs(Deadline):
    """Costs of one rendering so far, and the end of its time.

    Args:
        messages: number of messages that are rendered.
    """

    def __init__(self, messages: int) -> None:
        self._seconds = limits.template_seconds + SECONDS_A_MESSAGE * messages
        super().__init__(self._seconds)
        self._total = 0
        # Holds the containers too: an id is reused once its object is gone.
        self._weights: dict[int, tuple[int, Any]] = {}

    def tick(self) -> None:
        """Checks the time; called wherever a template can repeat something."""
        if self.over():
            raise TooCostly(
                f"it takes more than {self._seconds:.3g} seconds (limits.template_seconds)"
            )

    def need(self, size: int) -> None:
        """Checks the size of a value before it is made."""
        if size > limits.template_value:
            raise TooCostly(
                f"it makes a value of more than {limits.template_value:,} characters "
                "(limits.template_value)"
            )

    def steps(self, count: int) -> None:
        """Checks the number of characters that one call into C will copy or compare."""
        if count > STEPS:
            raise TooCostly("it searches or copies long texts over and over")

    def made(self, value: Any) -> Any:
        """Counts a new value and returns it."""
        self.tick()
        self.need(self.weigh(value))
        if isinstance(value, str):
            self._total += ITEM + len(value)
        elif isinstance(value, (list, tuple, dict)):
            # Even an empty one takes some 250 bytes, its entry in _weights included.
            self._total += ITEM * (16 + len(value))
        if self._total > limits.template_total:
            raise TooCostly(
                f"it makes more than {limits.template_total:,} characters in all "
                "(limits.template_total)"
            )
        return value

    def weigh(self, value: Any) -> int:
        """The size of a value: at least the length of its printed text, escapes aside.

        Raises:
            SecurityError: it holds what is no data; see `printable`.
        """
        if isinstance(value, str):
            return ITEM + len(value)
        if isinstance(value, int):
            if value.bit_length() > BITS:
                raise TooCostly(f"it makes a number of more than {BITS} bits")
            return ITEM
        if not isinstance(value, (list, tuple, dict)):
            printable(value)
            return ITEM
        weighed = self._weights.get(id(value))
        if weighed is None:
            size = ITEM + sum(map(self.weigh, value))
            if isinstance(value, dict):
                size += sum(map(self.weigh, value.values()))
            weighed = self._weights[id(value)] = size, value
        return weighed[0]

    def need_arguments(self, values: Iterable[Any]) -> None:
        """Checks the arguments of a call."""
        self.tick()
        self.need(sum(map(self.weigh, values)))

    def width(self, number: Any) -> int:
        """Checks a width, and returns it as a size; 0 unless it is a positive integer."""
        if isinstance(number, int) and number > WIDTH:
            raise TooCostly(f"it asks for a width of {number:,}")
        return max(number, 0) if isinstance(number, int) else 0

    def joined(self, separator: str, values: Iterable[Any]) -> list[Any]:
        """Checks values before they are joined, and returns them as a list."""
        items = list(values)
        self.need(len(separator) * len(items) + sum(map(self.weigh, items)))
        return items

    def replaced(self, text: str, old: str, new: str) -> None:
        """Checks `text.replace(old, new)` before it is called."""
        count = text.count(old) if old else len(text) + 1
        self.need(len(text) + count * len(new))

    def printf(self, text: str, values: Any) -> None:
        """Checks `text % values` before it is computed."""
        widest = 0
        for number in (n for numbers in _CONVERSION.findall(text) for n in numbers if n):
            if number == "*":
                raise TooCostly("it formats with a width of *; write the number")
            widest = max(widest, self.number(number))
        self.need(len(text) + text.count("%") * (widest + self.weigh(values)))

    def number(self, digits: str) -> int:
        """Checks a width or precision written in a format, and returns it."""
        return self.width(int(digits.lstrip("0")[: len(str(WIDTH)) + 1] or "0"))

    def operation(self, operator: str, left: Any, right: Any) -> None:
        """Checks `left operator right` before it is computed."""
        self.tick()
        printable(right)
        if operator == "%" and isinstance(left, str):
            self.printf(left, right)
        elif operator == "+" and isinstance(left, (str, list, tuple)):
            self.need(self.weigh(left) + self.weigh(right))
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            grown = left.bit_length() * right if operator == "**" else 0
            if max(grown, left.bit_length() + right.bit_length()) > BITS and abs(left) > 1:
                raise TooCostly(f"it makes a number of more than {BITS} bits")
        elif operator == "*":
            many, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int) and isinstance(many, (str, list, tuple)):
                self.need(ITEM + (self.weigh(many) - ITEM) * max(times, 0))


def printable(value: Any) -> Any:
    """Checks that a value is data or has a repr of its own, and returns it: other reprs give
    addresses away.

    Raises:
        SecurityError: it is a function, a method, or the like.
    """
    if isinstance(value, _FUNCTIONS) or type(value).__repr__ is object.__repr__:
        raise SecurityError(f"a {type(value).__name__} is no data: it cannot be printed or kept")
    return value


_current: ContextVar[Costs] = ContextVar("costs")


def costs() -> Costs:
    """The costs of the current rendering."""
    return _current.get()


@contextmanager
def counting(messages: int) -> Iterator[None]:
    """Limits a rendering of that many messages; compiling counts too: it folds constants."""
    token = _current.set(Costs(messages))
    try:
        yield
    finally:
        _current.reset(token)


def join(pieces: Iterable[str]) -> str:
    """Joins pieces of text, such as the output of a block or a macro."""
    counted, size = [], 0
    tick, need = costs().tick, costs().need
    for piece in pieces:
        tick()
        size += len(piece)
        need(size)
        counted.append(piece)
    return costs().made("".join(counted))


def each(values: Iterable[Any]) -> Iterator[Any]:
    """Yields the values of a loop, and checks the time at each."""
    tick = costs().tick
    for value in values:
        tick()
        yield value


def printed_width(spec: str) -> None:
    """Checks the widths in a `str.format` field, the part after the colon."""
    for digits in re.findall(r"\d+", spec):
        costs().number(digits)


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


def _by_name(*groups: tuple[str, Check | None]) -> dict[str, Check | None]:
    return {name: check for names, check in groups for name in names.split()}


# Methods that templates may call, by the type of their object, each with its check.
METHODS: tuple[tuple[type | tuple[type, ...], dict[str, Check | None]], ...] = (
    (
        str,
        _by_name(
            ("capitalize casefold count endswith find index isalnum isalpha isascii", None),
            ("isdecimal isdigit isidentifier islower isnumeric isprintable isspace", None),
            ("istitle isupper lower partition removeprefix removesuffix split splitlines", None),
            ("startswith swapcase title upper", None),
            ("center ljust rjust zfill", _widths),
            ("expandtabs", _expandtabs),
            ("replace", _replace),
            ("join", _join),
            ("strip lstrip rstrip rfind rindex rpartition rsplit", _searches),
        ),
    ),
    (dict, _by_name(("copy get items keys values", None))),
    ((list, tuple), _by_name(("copy count index", None))),
    (float, _by_name(("is_integer", None))),
)

FILTER_CHECKS = _by_name(
    ("batch center round slice", _widths),
    ("format", _printf),
    ("indent", _indent),
    ("replace", _replace),
    ("sum", _sum_filter),
    ("trim", _searches),
    ("unique", _unique),
    ("join", _join_filter),
)
