"""What a chat template may cost.

A template is a program by a stranger, and Jinja's sandbox does not limit its costs: `'a' * 10**10`,
`9 ** (9 ** 9)` or three nested loops would take the machine down. A call into C cannot be
interrupted, so every value is bounded before it is made: then no single step takes long, and the
time is looked at between the steps. Sizes count characters; a number or a container adds `ITEM`,
and a container what its items cost, each as often as it is in there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

SECONDS = 2.0
# Some templates look at all earlier messages for each: a thousand of them take a second.
SECONDS_A_MESSAGE = 0.01
VALUE = 1 << 23  # of one value: no context holds two million tokens of text
TOTAL = 1 << 28  # of all values made, whether still in use or not
ITEM = 16
WIDTH = 100_000  # a number that says how long a text shall be; Jinja's range() stops there, too
STEPS = 1 << 31
BITS = 4096  # of a whole number

_CONVERSION = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")


class TooCostly(Exception):
    """A template takes more time or memory than any template needs."""


class Costs:
    """What one rendering has cost so far.

    Args:
        messages: how many are rendered.
    """

    def __init__(self, messages: int) -> None:
        self._seconds = SECONDS + SECONDS_A_MESSAGE * messages
        self._deadline = time.monotonic() + self._seconds
        self._total = 0
        # The containers as well, so that no id is given away a second time.
        self._weights: dict[int, tuple[int, Any]] = {}

    def tick(self) -> None:
        """To be called wherever a template can repeat something."""
        if time.monotonic() > self._deadline:
            raise TooCostly(f"it takes more than {self._seconds:.3g} seconds")

    def need(self, size: int) -> None:
        """A value of that size is about to be made."""
        if size > VALUE:
            raise TooCostly(f"it makes a value of more than {VALUE:,} characters")

    def steps(self, count: int) -> None:
        """So many characters are about to be copied or compared, by one call into C."""
        if count > STEPS:
            raise TooCostly("it searches or copies long texts over and over")

    def made(self, value: Any) -> Any:
        """The value, which has just been made."""
        self.tick()
        self.need(self.weigh(value))
        if isinstance(value, str):
            self._total += ITEM + len(value)
        elif isinstance(value, (list, tuple, dict)):
            # With the note of its weight, even an empty one takes some 250 bytes.
            self._total += ITEM * (16 + len(value))
        if self._total > TOTAL:
            raise TooCostly(f"it makes more than {TOTAL:,} characters in all")
        return value

    def weigh(self, value: Any) -> int:
        """The size of a value; no less than, but for escapes, the text that it would print as."""
        if isinstance(value, str):
            return ITEM + len(value)
        if isinstance(value, int):
            if value.bit_length() > BITS:
                raise TooCostly(f"it makes a number of more than {BITS} bits")
            return ITEM
        if not isinstance(value, (list, tuple, dict)):
            return ITEM
        known = self._weights.get(id(value))
        if known is None:
            size = ITEM + sum(map(self.weigh, value))
            if isinstance(value, dict):
                size += sum(map(self.weigh, value.values()))
            known = self._weights[id(value)] = size, value
        return known[0]

    def given(self, values: Iterable[Any]) -> None:
        """A function is about to be called with these."""
        self.tick()
        self.need(sum(map(self.weigh, values)))

    def width(self, number: Any) -> int:
        """A number that says how long a text shall be."""
        if isinstance(number, int) and number > WIDTH:
            raise TooCostly(f"it asks for a width of {number:,}")
        return max(number, 0) if isinstance(number, int) else 0

    def joined(self, separator: str, values: Iterable[Any]) -> list[Any]:
        """The values, which are about to be joined."""
        items = list(values)
        self.need(len(separator) * len(items) + sum(map(self.weigh, items)))
        return items

    def replaced(self, text: str, old: str, new: str) -> None:
        """`text.replace(old, new)` is about to be called."""
        count = text.count(old) if old else len(text) + 1
        self.need(len(text) + count * len(new))

    def printf(self, text: str, values: Any) -> None:
        """`text % values` is about to be computed."""
        widest = 0
        for number in (n for found in _CONVERSION.findall(text) for n in found if n):
            if number == "*":
                raise TooCostly("it formats with a width of *; write the number")
            widest = max(widest, self.number(number))
        self.need(len(text) + text.count("%") * (widest + self.weigh(values)))

    def number(self, digits: str) -> int:
        """A width that is written in a format."""
        return self.width(int(digits.lstrip("0")[: len(str(WIDTH)) + 1] or "0"))

    def operation(self, operator: str, left: Any, right: Any) -> None:
        """`left operator right` is about to be computed."""
        self.tick()
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


_current: ContextVar[Costs] = ContextVar("costs")


def costs() -> Costs:
    """Those of the rendering under way."""
    return _current.get()


@contextmanager
def counting(messages: int) -> Iterator[None]:
    """A rendering of that many messages; includes compiling, which computes what is constant."""
    token = _current.set(Costs(messages))
    try:
        yield
    finally:
        _current.reset(token)


def join(pieces: Iterable[str]) -> str:
    """The pieces of a text joined; they come from a template's blocks and macros."""
    counted, size = [], 0
    tick, need = costs().tick, costs().need
    for piece in pieces:
        tick()
        size += len(piece)
        need(size)
        counted.append(piece)
    return costs().made("".join(counted))


def each(values: Iterable[Any]) -> Iterator[Any]:
    """The values one by one, for a loop."""
    tick = costs().tick
    for value in values:
        tick()
        yield value


def printed_width(spec: str) -> None:
    """Checks the part of a `str.format` field that follows the colon."""
    for digits in re.findall(r"\d+", spec):
        costs().number(digits)
