"""The words of a sound."""

from __future__ import annotations

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
