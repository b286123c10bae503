"""Reads a block of calls as it comes."""

from __future__ import annotations

from .deltas import Call
from .families import Block
from .finding import Balanced, Fenced
from .forms import Code, Named, Quoted, Tagged
from .values import Malformed, Tools

_HEAD = 256  # characters between the mark of a block and what it promises


class BlockReader:
    """Reads one block.

    Attributes:
        block: its description.
        calls: those that were read; empty again when they are taken.
        ended: nothing more belongs to it. failed: it is none.
        raw: its text, where it failed.
    """

    def __init__(self, block: Block, tools: Tools, name: str = ""):
        self.block = block
        self.calls: list[Call] = []
        self.ended = self.failed = False
        self.raw = ""
        self._tools, self._name = tools, name
        self._parts: list[str] = []
        self._balanced = Balanced()
        form = block.form
        self._fenced = (
            Fenced(form.inside, block.close) if isinstance(form, (Tagged, Quoted, Code)) else None
        )
        self._step = self._head

    def take(self, text: str, final: bool) -> str:
        """Goes on with more text; what does not belong to the block, or is undecided."""
        while not self.ended:
            before, step = len(text), self._step
            text = step(text, final)
            if step == self._step and (len(text) == before or not text):
                break
        if final and not self.ended:
            text = self._finish(text)
        return text

    def _head(self, text: str, final: bool) -> str:
        """Waits for the beginning of what the mark promises."""
        begun = text.lstrip()
        space = len(text) - len(begun)
        found = self._found(begun, final)
        if found is None and not final and space + len(begun) <= _HEAD:
            return text
        if not found:
            return self._fail(self.block.open, text)
        self._step = self._value if self._fenced is None else self._until_close
        return text

    def _found(self, begun: str, final: bool) -> bool | None:
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
        self._parts.append(text if end < 0 else text[:end])
        if end < 0:
            return ""
        self._read()
        self._step = self._tail
        return text[end:]

    def _until_close(self, text: str, final: bool) -> str:
        """Goes on to the mark that ends the block."""
        assert self._fenced is not None
        end, closed = self._fenced.take(text, 0, final)
        self._parts.append(text[:end])
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

    def _finish(self, text: str) -> str:
        """The reply is over: a block may lack its closing mark, which ends replies, too."""
        self._parts.append(text)
        self.ended = True
        if self._step == self._until_close and not self._cut():
            self._read()
        elif self._step != self._tail:
            self._fail("".join((self.block.open, *self._parts)), "")
        return ""

    def _cut(self) -> bool:
        """Whether the end of the reply may have cut a name or value short."""
        form = self.block.form
        shut = form.end or form.shut if isinstance(form, Tagged) else ""
        return not "".join(self._parts).rstrip().endswith(shut)

    def _read(self, close: str = "") -> None:
        block, body = self.block, "".join(self._parts)
        whole = block.open + body
        if block.whole:
            body = whole
        elif close:
            body = body[: -len(close)]
        if self._name:
            body = self._name + body
        try:
            calls = block.form.read(body, self._tools)
            if not block.open and not self._name and not all(c.name in self._tools for c in calls):
                raise Malformed
            self.calls = calls
        except Malformed:
            self._fail(whole, "")

    def _fail(self, raw: str, rest: str) -> str:
        self.raw, self.ended, self.failed = raw, True, True
        return rest
