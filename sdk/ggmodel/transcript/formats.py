"""Transcripts as text and as subtitles."""

from __future__ import annotations

from collections.abc import Sequence

from .transcript import Segment


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
