"""Untrusted regular expressions, matched in a time that grows with the text alone.

All ways through a pattern are followed at once, character by character (Thompson's construction
with captures, as Pike has it), in the order in which backtracking would try them: so the match is
the same, no pattern takes long, and a text may come in pieces.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ...errors import TemplateError

_CHARACTERS = 2000  # of a pattern
_STEPS = 5000  # of a program
_MOST_CHARACTERS = 512  # characters looked up for each class
_REPEAT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_GROUP = re.compile(r"\?(?::|P?<([A-Za-z_]\w*)>)")

# Instructions: ("char", matches, its source), ("split", first, second), ("jump", to),
# ("save", slot), ("begin",), ("end", whether a line break may follow), ("match",)
Program = list[tuple[Any, ...]]
Reach = tuple[tuple[int, tuple[int, ...]], ...]  # instructions, and slots saved on the way


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern.

    Attributes:
        names: of the groups, in the order of their slots.
        first: finds a character with which a match can begin; None if it may be empty.
    """

    source: str
    program: Program
    names: tuple[str, ...]
    first: re.Pattern[str] | None
    _reached: dict[tuple[int, bool], Reach] = field(default_factory=dict)

    def reach(self, at: int, beginning: bool) -> Reach:
        """The instructions to wait at, reached without a character, the preferred first."""
        key = at, beginning
        if key not in self._reached:
            self._reached[key] = tuple(_reach(self.program, at, beginning))
        return self._reached[key]

    @classmethod
    def of(cls, source: Any, where: str) -> Pattern:
        """Compiles a pattern.

        Raises:
            TemplateError: it is broken, too long, or needs to look back or ahead.
        """
        if not isinstance(source, str) or len(source) > _CHARACTERS:
            raise TemplateError(f"{where}: a pattern is a text of at most {_CHARACTERS} characters")
        return _Compiler(source, where).pattern()


class _Compiler:
    def __init__(self, source: str, where: str):
        self._source, self._at, self._where = source, 0, where
        self._names: list[str] = []

    def pattern(self) -> Pattern:
        program = self._choice()
        if self._at < len(self._source):
            self._refuse("a bracket closes nothing")
        program = [*program, ("match",)]
        begins = [program[at] for at, _ in _reach(program, 0, beginning=True)]
        if ("match",) in begins:
            self._refuse("it matches where there is nothing")
        first = None
        if all(step[0] == "char" for step in begins):
            characters = dict.fromkeys(step[2] for step in begins)
            first = re.compile("|".join(characters) or "(?!)", re.DOTALL)
        return Pattern(self._source, program, tuple(self._names), first)

    def _refuse(self, why: str) -> NoReturn:
        raise TemplateError(f"{self._where}: the pattern {self._source!r} cannot be used: {why}")

    def _choice(self) -> Program:
        made = self._sequence()
        while self._took("|"):
            other = self._sequence()
            made = [("split", 1, len(made) + 2), *made, ("jump", len(other) + 1), *other]
        return self._bounded(made)

    def _sequence(self) -> Program:
        made: Program = []
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            made += self._repeated(self._atom())
        return self._bounded(made)

    def _bounded(self, program: Program) -> Program:
        if len(program) > _STEPS:
            self._refuse("it repeats too much")
        return program

    def _took(self, text: str) -> bool:
        took = self._source.startswith(text, self._at)
        self._at += len(text) if took else 0
        return took

    def _atom(self) -> Program:
        sign = self._source[self._at]
        if self._took("("):
            return self._group()
        if sign in "*+?":
            self._refuse(f"{sign} repeats nothing")
        begin = self._at
        self._at += 2 if sign == "\\" else 1
        if sign == "^":
            return [("begin",)]
        if sign == "$":
            return [("end", True)]
        if sign == "[":
            self._class()
        text = self._source[begin : self._at]
        if text in ("\\A", "\\Z", "\\z"):
            return [("begin",)] if text == "\\A" else [("end", False)]
        if sign == "\\":
            text = self._escape(text)
        return [("char", self._character(text), text if sign in "[\\." else re.escape(text))]

    def _escape(self, text: str) -> str:
        sign = text[1:]
        digits = {"x": 2, "u": 4, "U": 8}.get(sign, 0)
        text += self._source[self._at : self._at + digits]
        self._at += digits
        supported = not (sign.isdigit() or sign.isalpha()) or sign in "dDsSwWnrtfvaxuU"
        if not sign or not supported:
            self._refuse(f"{text} is unsupported")
        return text

    def _class(self) -> None:
        self._took("^")
        self._took("]")
        while not self._took("]"):
            if self._at >= len(self._source):
                self._refuse("a [ is not closed")
            self._at += 2 if self._source[self._at] == "\\" else 1

    def _character(self, text: str) -> Any:
        try:
            with warnings.catch_warnings():  # about sets that may mean more one day
                warnings.simplefilter("ignore")
                matches = re.compile(text, re.DOTALL).fullmatch
        except (re.error, OverflowError) as error:
            self._refuse(str(error))
        return _CharacterClass(matches).__getitem__

    def _group(self) -> Program:
        match = _GROUP.match(self._source, self._at)
        if match:
            self._at = match.end()
        elif self._took("?"):
            self._refuse("it looks back or ahead, or sets options")
        slot = None
        if match and match[1]:
            if match[1] in self._names:
                self._refuse(f"the group {match[1]} comes twice")
            slot = len(self._names)
            self._names.append(match[1])
        inner = self._choice()
        if not self._took(")"):
            self._refuse("a ( is not closed")
        return inner if slot is None else [("save", 2 * slot), *inner, ("save", 2 * slot + 1)]

    def _repeated(self, inner: Program) -> Program:
        least, most = 1, 1
        if self._took("*"):
            least, most = 0, -1
        elif self._took("+"):
            least, most = 1, -1
        elif self._took("?"):
            least, most = 0, 1
        elif match := _REPEAT.match(self._source, self._at):
            self._at = match.end()
            least = int(match[1])
            most = least if not match[2] else int(match[3]) if match[3] else -1
        else:
            return inner
        lazy = self._took("?")
        if self._took("+"):
            self._refuse("it does not give back what it took")
        if self._source[self._at : self._at + 1] in ("*", "?", "{"):
            self._refuse("it repeats a repetition")
        if (least + max(most, 0)) * (len(inner) + 1) > _STEPS:
            self._refuse("it repeats too much")
        made = inner * least
        if most < 0:
            return [*made, *_split(1, len(inner) + 2, lazy), *inner, ("jump", -len(inner) - 1)]
        for _ in range(most - least):
            made = [*made, *_split(1, len(inner) + 1, lazy), *inner]
        return made


class _CharacterClass(dict[str, bool]):
    """Whether characters are of a class, looked up once each."""

    def __init__(self, matches: Any):
        super().__init__()
        self._matches = matches

    def __missing__(self, character: str) -> bool:
        belongs = self._matches(character) is not None
        if len(self) < _MOST_CHARACTERS:
            self[character] = belongs
        return belongs


def _split(first: int, second: int, lazy: bool) -> Program:
    return [("split", second, first) if lazy else ("split", first, second)]


def _reach(program: Program, at: int, beginning: bool) -> Iterator[tuple[int, tuple[int, ...]]]:
    visited: set[int] = set()
    todo: list[tuple[int, tuple[int, ...]]] = [(at, ())]
    while todo:
        at, saves = todo.pop()
        if at in visited:
            continue
        visited.add(at)
        step = program[at]
        if step[0] in ("char", "end", "match"):
            yield at, saves
        elif step[0] != "begin" or beginning:
            saves = (*saves, step[1]) if step[0] == "save" else saves
            todo += [(at + to, saves) for to in _next(step)]


def _next(step: tuple[Any, ...]) -> tuple[int, ...]:
    """Where to go on without a character, the last choice first."""
    if step[0] == "split":
        return step[2], step[1]
    return (step[1],) if step[0] == "jump" else (1,)


@dataclass
class Match:
    """A match: places from the beginning of the text that was fed, and named groups."""

    start: int
    end: int
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)


# One way through the pattern: the instruction it waits at, the place where it began, its slots, and
# the place where it came to wait.
_Thread = tuple[int, int, tuple[int, ...], int]


class Search:
    """Looks for the first match in a text that comes in pieces.

    Args:
        place: of the first character that will be fed.

    Attributes:
        match: the match, once no better one can come.
        hold: no match begins before this place.
    """

    def __init__(self, pattern: Pattern, place: int):
        self._pattern, self._place = pattern, place
        self._slots = (-1,) * (2 * len(pattern.names))
        self._last = len(pattern.program) - 1
        self._threads: list[_Thread] = []
        self._reached: set[int] = set()
        self._best: Match | None = None
        self.match: Match | None = None
        self.hold = place

    def feed(self, text: str, begin: int = 0) -> None:
        """Goes on with more text, from `begin` on, unless the match is found."""
        first, at, size = self._pattern.first, begin, len(text)
        base = self._place - begin
        while at < size and self.match is None:
            if not self._threads and first is not None:
                possible = first.search(text, at)
                if possible is None:
                    break
                at = possible.start()
            self._step(text[at], base + at)
            at += 1
            if self._best is not None and not self._threads:
                self.match = self._best
        self._place = base + size
        starts = [thread[1] for thread in self._threads]
        starts += [self._best.start] if self._best else []
        self.hold = min(starts, default=self._place)

    def finish(self) -> None:
        """The text is complete."""
        if self.match is None:
            if self._best is None:
                self._begin(self._place)
            for thread in self._threads:
                at, start, slots, place = thread
                if self._pattern.program[at][0] == "end" and self._ends(at + 1, thread):
                    self._best = Match(start, place, self._groups(slots))
                    break
            self.match, self._threads = self._best, []
        self.hold = self.match.start if self.match else self._place

    def _ends(self, at: int, thread: _Thread) -> bool:
        """Whether the pattern has matched, if the text ends here."""
        reached = self._pattern.reach(at, thread[3] == 0)
        program = self._pattern.program
        return any(
            program[to][0] == "match" or (program[to][0] == "end" and self._ends(to + 1, thread))
            for to, _ in reached
        )

    def _begin(self, place: int) -> None:
        start = (0, place, self._slots, place)
        self._follow(0, start, place, self._threads, self._reached)

    def _step(self, character: str, place: int) -> None:
        if self._best is None:
            self._begin(place)
        threads: list[_Thread] = []
        reached: set[int] = set()
        program = self._pattern.program
        for thread in self._threads:
            step = program[thread[0]]
            if step[0] == "end":
                # A line break may end the text, and come after its end.
                if character == "\n" and step[1] and place == thread[3]:
                    threads.append(thread)
            elif step[1](character) and self._follow(
                thread[0] + 1, thread, place + 1, threads, reached
            ):
                break
        self._threads, self._reached = threads, reached

    def _follow(
        self, at: int, thread: _Thread, place: int, threads: list[_Thread], visited: set[int]
    ) -> bool:
        """Goes on up to instructions that need a character; whether the pattern has matched."""
        _, start, slots, _ = thread
        for to, saves in self._pattern.reach(at, place == 0):
            if to in visited:
                continue
            visited.add(to)
            made = slots
            for slot in saves:
                made = (*made[:slot], place, *made[slot + 1 :])
            if to == self._last:
                self._best = Match(start, place, self._groups(made))
                return True
            threads.append((to, start, made, place))
        return False

    def _groups(self, slots: tuple[int, ...]) -> dict[str, tuple[int, int]]:
        names = self._pattern.names
        spans = zip(names, slots[::2], slots[1::2], strict=True)
        return {name: (begin, end) for name, begin, end in spans if begin >= 0 and end >= 0}


def matches(pattern: Pattern, text: str) -> Iterator[Match]:
    """All matches in a text, one after the other."""
    at = 0
    while at < len(text):
        search = Search(pattern, at)
        search.feed(text, at)
        search.finish()
        if search.match is None or search.match.end == at:
            return
        yield search.match
        at = search.match.end
