"""The parser of a family's replies: finds markers and reads blocks of calls as the text comes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from .deltas import Delta, Reasoning, ToolCall, Writer
from .families import TURNS, Block, Family
from .tool_calls import Code, Named, Quoted, Tagged
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
        calls: those that were read; empty again when they are taken.
        ended: nothing more belongs to it. failed: it is none.
        raw: its text, where it failed.
    """

    def __init__(self, block: Block, tools: Tools, name: str = ""):
        self.block = block
        self.calls: list[ToolCall] = []
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


_HEADER = 256  # characters of a header of a message
_SLICE = 1024  # characters looked at together, since the rest is copied at each mark


class FamilyParser:
    """Takes a reply in pieces and gives its parts; see `ReplyFormat.parser`."""

    def __init__(self, family: Family, tools: Tools, ending: str = ""):
        self._family, self._tools = family, tools
        self._writer = Writer()
        self._text = ""  # that is not decided upon
        bare = [block for block in family.blocks if not block.open and block.begins]
        self._bare = bare if tools.parameters else []
        self._blocks = {block.open: block for block in family.blocks if block.open}
        self._thoughts = {thought.open: thought for thought in family.thoughts}
        channels = family.channels
        self._opens = channels.opens if channels else ()
        skip = (*family.skip, *family.section)
        self._content = finder((*self._thoughts, *self._blocks, *self._opens, *skip))
        # A call ends a thought that the model forgot to close, where its mark is a token.
        begins = self._opens or (family.section[0], *self._blocks)
        self._breaks = begins if self._opens or begins[0] else ()
        self._close = self._content  # finds the end of the present thought
        self._state = self._in_content
        self._block: BlockReader | None = None
        self._header = ""  # that the prompt holds, of a message
        self._may_be_bare = bool(self._bare)
        self._begin(ending)

    def feed(self, text: str) -> list[Delta]:
        """The parts that a piece of the reply adds."""
        for at in range(0, len(text), _SLICE):
            self._text += text[at : at + _SLICE]
            self._run(final=False)
        return self._writer.take()

    def end(self) -> list[Delta]:
        """The rest, when the reply is complete."""
        self._run(final=True)
        self._writer.end()
        return self._writer.take()

    def _begin(self, ending: str) -> None:
        """Reads of the prompt what belongs to the reply, such as the mark of a thought."""
        turn = max((ending.rfind(mark) + len(mark) for mark in TURNS if mark in ending), default=-1)
        channels = self._family.channels
        if channels and (begin := ending.rfind(channels.opens[0])) >= 0:
            turn = begin
        if turn >= 0:
            begun = ending[turn:]
        else:
            ends = [open for open in self._thoughts if ending.rstrip().endswith(open)]
            begun = ends[0] if ends else ""
        if not begun.strip():
            return
        self._text = begun
        self._run(final=False)
        self._writer.forget()
        if self._state == self._in_header:
            self._header, self._text = self._text, ""

    def _run(self, final: bool) -> None:
        while self._state(final):
            pass

    def _in_content(self, final: bool) -> bool:
        """Goes on with content; whether the state is another now."""
        if self._may_be_bare and (block := self._begins_bare()) is not None:
            return self._open(block)
        start, marker = self._content.find(self._text, 0, final)
        self._add_text(self._text[:start])
        self._text = self._text[start + len(marker) :]
        if not marker:
            return False
        if marker in self._opens:
            self._text = marker + self._text
            self._state = self._in_header
        elif marker in self._blocks:
            return self._open(self._blocks[marker])
        elif marker not in self._thoughts:
            self._writer.turn()
        elif self._writer.has_text and not self._thoughts[marker].anywhere:
            self._add_text(marker)
        else:
            self._think(self._thoughts[marker].close)
        return True

    def _add_text(self, text: str) -> None:
        self._writer.add(text)
        self._may_be_bare = self._may_be_bare and not self._writer.has_text

    def _begins_bare(self) -> Block | None:
        begun = self._text.lstrip()
        return next((b for b in self._bare if begun and begun.startswith(b.begins)), None)

    def _think(self, close: str) -> None:
        self._close, self._state = finder((close, *self._breaks)), self._in_thought
        self._writer.turn(Reasoning)

    def _in_thought(self, final: bool) -> bool:
        start, marker = self._close.find(self._text, 0, final)
        self._writer.add(self._text[:start])
        kept = marker if marker in self._breaks else ""
        self._text = kept + self._text[start + len(marker) :]
        if marker:
            self._writer.turn()
            self._state = self._in_content
        return bool(marker)

    def _open(self, block: Block, name: str = "") -> bool:
        self._block, self._state = BlockReader(block, self._tools, name), self._in_block
        return True

    def _in_block(self, final: bool) -> bool:
        block = self._block
        assert block is not None
        self._text = block.take(self._text, final)
        if block.calls:
            for call in block.calls:
                self._writer.call(call)
            block.calls = []
        if not block.ended:
            return False
        if block.failed:
            self._add_text(block.raw)
            if block.raw and not block.block.open:
                self._may_be_bare = False
        self._state = self._in_content
        return True

    def _in_header(self, final: bool) -> bool:
        """Reads who speaks to whom, in a format of channels."""
        channels = self._family.channels
        assert channels is not None
        head, message, rest = (self._header + self._text).partition(channels.message)
        longest = _HEADER if message else _HEADER + len(channels.message)
        fits = len(head) <= longest and _may_be_header(head, channels.opens, bool(message))
        if not fits or (final and not message):
            # Not again: the mark that opened it is content.
            opened = next((o for o in channels.opens if self._text.startswith(o)), "")
            opened = "" if self._header else opened
            self._add_text(opened)
            self._text, self._header = self._text[len(opened) :], ""
            self._state = self._in_content
            return True
        if not message:
            return False
        self._text, self._header = rest, ""
        self._writer.turn()
        channel = _word(head.rpartition(channels.channel)[2])
        recipient = (
            _word(head.rpartition(channels.recipient)[2]) if channels.recipient in head else ""
        )
        if recipient not in ("", "assistant"):
            return self._open(self._family.blocks[0], recipient.removeprefix(channels.functions))
        self._state = self._in_content
        if channel in channels.thoughts:
            self._think(channels.ends[0])
        return True


def _word(text: str) -> str:
    """The beginning of a text, up to space or another marker."""
    return (text.split("<", 1)[0].split() or [""])[0]


def _may_be_header(head: str, opens: tuple[str, ...], whole: bool) -> bool:
    head = head.removeprefix(opens[0]).removeprefix("assistant")
    if whole:
        return not head or head.startswith((" to=", "<|"))
    return any(sign.startswith(head[: len(sign)]) for sign in (" to=", "<|", "assistant"))
