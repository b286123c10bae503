"""Transcribes speech of any length, with timestamps."""

from .formats import as_srt, as_text
from .transcribe import transcribe
from .transcript import Segment, Transcript

__all__ = ["Segment", "Transcript", "as_srt", "as_text", "transcribe"]
