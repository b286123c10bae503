"""The parser of a family's replies: content, thoughts, and blocks of calls."""

from __future__ import annotations

from .blocks import BlockReader, finder
from .deltas import Delta, Reasoning, Writer
from .families import TURNS, Block, Family
from .values import Tools

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
        self._is_cut = False
        self._header = ""  # that the prompt holds, of a message
        self._may_be_bare = bool(self._bare)
        self._begin(ending)

    def feed(self, text: str) -> list[Delta]:
        """The parts that a piece of the reply adds."""
        for at in range(0, len(text), _SLICE):
            self._text += text[at : at + _SLICE]
            self._run(final=False)
        return self._writer.take()

    def end(self, cut: bool = False) -> list[Delta]:
        """The rest, when the reply is over; see `ReplyParser.end`."""
        self._is_cut = cut
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
        self._block, self._state = (
            BlockReader(block, self._tools, self._writer, name),
            self._in_block,
        )
        return True

    def _in_block(self, final: bool) -> bool:
        block = self._block
        assert block is not None
        self._text = block.take(self._text, final, self._is_cut)
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
        if fits and not message and self._is_cut:
            self._text = ""
            return False
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
