"""Finds markers in a text that comes piece by piece, and the end of a call."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache


class Finder:
    """Finds the first of several markers; of those that begin at one place, the longest."""

    def __init__(self, markers: Iterable[str]):
        self._markers = sorted(set(markers) - {""}, key=len, reverse=True)
        # Without markers it never matches.
        self._any = re.compile("|".join(map(re.escape, self._markers)) or r"(?!)")
        firsts = "".join({re.escape(marker[0]) for marker in self._markers})
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")
        self._begun = {m[:n] for m in self._markers for n in range(1, len(m))}
        self._longest = max(map(len, self._markers), default=0)

    def find(self, text: str, at: int, final: bool) -> tuple[int, str]:
        """The place and the text of the next marker, from `at` on.

        Without one the text is "", and before the place nothing of a marker can stand: from there
        on a marker may have begun.
        """
        found = self._any.search(text, at)
        if final:
            return (found.start(), found[0]) if found else (len(text), "")
        hold = self._hold(text, at)
        if found is None or found.start() >= hold:
            return hold, ""
        return found.start(), found[0]

    def _hold(self, text: str, at: int) -> int:
        start = max(at, len(text) - self._longest + 1)
        while found := self._first.search(text, start):
            if text[found.start() :] in self._begun:
                return found.start()
            start = found.end()
        return len(text)


finder = lru_cache(maxsize=256)(Finder)  # by its markers, a tuple; it keeps no state


_INSIDE = {'"': re.compile(r'[\\"]'), "'": re.compile(r"[\\']")}
_OUTSIDE = re.compile(r"""["'{}()\[\]]""")


class Balanced:
    """Finds the bracket that closes the first one; brackets within quotes do not count."""

    def __init__(self) -> None:
        self._depth, self._quote, self._escaped = 0, "", False

    def take(self, text: str, at: int) -> int:
        """The place after the end, or -1 if it is further on; goes on from where it stopped."""
        size = len(text)
        while at < size:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_INSIDE[self._quote] if self._quote else _OUTSIDE).search(text, at)
            if found is None:
                return -1
            at, sign = found.end(), found[0]
            if sign == "\\":
                self._escaped = True
            elif sign == self._quote:
                self._quote = ""
            elif sign in "\"'":
                self._quote = sign
            else:
                self._depth += 1 if sign in "{[(" else -1
                if self._depth <= 0:
                    return at
        return -1


class Fenced:
    """Finds a closing marker that is not within a pair of others, such as those of a value."""

    def __init__(self, inside: tuple[str, str], close: str):
        self._open, self._close = inside[0], close
        self._outside, self._inside = finder((inside[0], close)), finder((inside[1],))
        self._within = False

    def take(self, text: str, at: int, final: bool) -> tuple[int, bool]:
        """The place up to which the text is looked through, and whether the close lies just before
        it."""
        while True:
            finder = self._inside if self._within else self._outside
            start, marker = finder.find(text, at, final)
            at = start + len(marker)
            if not marker or (marker == self._close and not self._within):
                return at, bool(marker)
            self._within = not self._within
