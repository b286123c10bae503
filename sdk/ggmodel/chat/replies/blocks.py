"""Blocks of calls: markers are found, and what stands between them is read as the text comes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from .deltas import Writer
from .families import Block
from .rewritten import LiteralCalls, TaggedCalls
from .streams import Calls, JsonCalls
from .tool_calls import Code, Named, Python, Quoted, Tagged
from .values import Malformed, Tools


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
        match = self._any.search(text, at)
        if final:
            return (match.start(), match[0]) if match else (len(text), "")
        end = self._open_end(text, at)
        if match is None or match.start() >= end:
            return end, ""
        return match.start(), match[0]

    def _open_end(self, text: str, at: int) -> int:
        start = max(at, len(text) - self._longest + 1)
        while match := self._first.search(text, start):
            if text[match.start() :] in self._begun:
                return match.start()
            start = match.end()
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
            match = (_INSIDE[self._quote] if self._quote else _OUTSIDE).search(text, at)
            if match is None:
                return -1
            at, sign = match.end(), match[0]
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


_HEAD = 256  # characters between the mark of a block and what it promises


class BlockReader:
    """Reads one block.

    Attributes:
        block: its description.
        ended: nothing more belongs to it. failed: it is none.
        raw: its text, where it failed.

    Args:
        writer: gets the calls. name: of the function, if a header has it.
    """

    def __init__(self, block: Block, tools: Tools, writer: Writer, name: str = ""):
        self.block = block
        self.ended = self.failed = False
        self.raw = ""
        self._tools, self._name, self._writer = tools, name, writer
        self._calls = _calls_of(block, tools, writer, name)
        self._parts: list[str] = []
        self._balanced = Balanced()
        form = block.form
        self._fenced = (
            Fenced(form.inside, block.close) if isinstance(form, (Tagged, Quoted, Code)) else None
        )
        self._step = self._head

    def take(self, text: str, final: bool, cut: bool) -> str:
        """Goes on with more text; what does not belong to the block, or is undecided.

        Args:
            final: the reply is over. cut: a limit ended it.
        """
        while not self.ended:
            before, step = len(text), self._step
            text = step(text, final and not cut)
            if step == self._step and (len(text) == before or not text):
                break
        if final and not self.ended:
            text = self._finish(text, cut)
        return text

    def _head(self, text: str, final: bool) -> str:
        """Waits for the beginning of what the mark promises."""
        begun = text.lstrip()
        space = len(text) - len(begun)
        matches = self._matches_start(begun, final)
        if matches is None and not final and space + len(begun) <= _HEAD:
            return text
        if not matches:
            return self._fail(self.block.open, text)
        self._step = self._value if self._fenced is None else self._until_close
        return text

    def _matches_start(self, begun: str, final: bool) -> bool | None:
        """Whether the text begins as it must; None if more of it is needed."""
        block = self.block
        if self._fenced is not None:
            signs = block.begins
            if not signs or begun.startswith(signs):
                return True
            short = any(sign.startswith(begun) for sign in signs)
            return None if short and not final else False
        if not begun:
            return None
        if begun[0] in "[{":
            return True
        if isinstance(block.form, Named) and not self._name:
            return True if "{" in begun[:_HEAD] else None
        return False

    def _value(self, text: str, final: bool) -> str:
        """Goes on to the bracket that ends the calls."""
        start = 0
        if not self._parts and isinstance(self.block.form, Named) and text.lstrip()[:1] != "[":
            start = text.index("{")
        end = self._balanced.take(text, start)
        self._add(text if end < 0 else text[:end])
        if end < 0:
            return ""
        self._read()
        self._step = self._tail
        return text[end:]

    def _add(self, text: str) -> None:
        """More of the calls."""
        self._parts.append(text)
        if self._calls is not None:
            self._calls.feed(text)

    def _until_close(self, text: str, final: bool) -> str:
        """Goes on to the mark that ends the block."""
        assert self._fenced is not None
        end, closed = self._fenced.take(text, 0, final)
        body = end - len(self.block.close) if closed and not self.block.whole else end
        self._add(text[:body])
        self._parts.append(text[body:end])
        if closed:
            self._read(self.block.close)
            self.ended = True
        return text[end:]

    def _tail(self, text: str, final: bool) -> str:
        """Leaves out what may stand between the calls and the end of the block."""
        begun = text.lstrip()
        signs = (*self.block.fill, self.block.close)
        for sign in signs:
            if sign and begun.startswith(sign):
                self.ended = sign == self.block.close
                return begun[len(sign) :]
        if not final and any(sign and sign.startswith(begun) for sign in signs):
            return begun
        self.ended = True
        return begun

    def _finish(self, text: str, cut: bool) -> str:
        """The reply is over: a block may lack its closing mark, which ends replies, too."""
        self._add(text)
        self.ended = True
        if self._step == self._until_close and not self._is_short(cut):
            self._read()
        elif self._step != self._tail and not self._ended_within(cut):
            self._fail("".join((self.block.open, *self._parts)), "")
        return ""

    def _ended_within(self, cut: bool) -> bool:
        """Whether the reply ended within a call, of which nothing is content."""
        if self._calls is not None and self._calls.count:
            return True
        return bool(cut and (self.block.open or self._name))

    def _is_short(self, cut: bool) -> bool:
        """Whether the end of the reply may have cut a name or value short."""
        form = self.block.form
        if isinstance(form, Tagged):
            return not "".join(self._parts).rstrip().endswith(form.end or form.shut)
        return cut and not isinstance(form, Code)

    def _read(self, close: str = "") -> None:
        block, body = self.block, "".join(self._parts)
        whole = block.open + body
        if block.whole:
            body = whole
        elif close:
            body = body[: -len(close)]
        if self._name:
            body = self._name + body
        written = 0
        if self._calls is not None:
            self._calls.end(complete=True)
            written = self._calls.count
        try:
            if isinstance(block.form, (Tagged, Quoted)):
                raise Malformed  # but for what is written
            calls = block.form.read(body, self._tools)
            if not block.open and not self._name and not all(c.name in self._tools for c in calls):
                raise Malformed
        except Malformed:
            if not written:
                self._fail(whole, "")
            return
        for call in calls[written:]:
            self._writer.call(call)

    def _fail(self, raw: str, rest: str) -> str:
        self.raw, self.ended, self.failed = raw, True, True
        return rest


def _calls_of(block: Block, tools: Tools, writer: Writer, name: str) -> Calls | None:
    """The calls of a block as they are written; None where they come whole."""
    form = block.form
    if isinstance(form, Tagged):
        return TaggedCalls(writer, form, tools, block.open if block.whole else "")
    only = None if block.open or name else tools
    if isinstance(form, (Quoted, Python)):
        return LiteralCalls(writer, form, only)
    if isinstance(form, Code):
        return None
    return JsonCalls(writer, only, form if isinstance(form, Named) else None, name)
