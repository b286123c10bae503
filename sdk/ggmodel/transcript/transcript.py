"""Transcripts: the words of a sound, as text and as subtitles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Segment:
    """A passage of a sound.

    Attributes:
        start, end: seconds from the beginning.
        text: what is said.
        tokens: its ids, times included.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Transcript:
    """The words of a sound.

    Attributes:
        text: all of it.
        language: its code, given or recognised; None for a model of one language.
        seconds: length of the sound.
        segments: its passages; without timestamps one for each window, or one for the whole.
    """

    text: str
    language: str | None
    seconds: float
    segments: tuple[Segment, ...]


def as_srt(segments: Sequence[Segment]) -> str:
    """Subtitles in the format SubRip: numbers, times to the millisecond, text."""
    blocks = (
        f"{n}\n{_time(s.start)} --> {_time(s.end)}\n{_line(s.text)}\n"
        for n, s in enumerate(segments, 1)
    )
    return "\n".join(blocks)


def as_text(segments: Sequence[Segment]) -> str:
    """A line for each segment: its times and its text."""
    return "".join(f"[{_time(s.start)} --> {_time(s.end)}] {_line(s.text)}\n" for s in segments)


def _line(text: str) -> str:
    """One line: an empty one would end a subtitle."""
    return " ".join(text.split())


def _time(seconds: float) -> str:
    rest, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(rest, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02},{thousandths:03}"
