"""Transcribes speech of any length, with timestamps."""

from .transcribe import transcribe
from .transcript import Segment, Transcript, as_srt, as_text

__all__ = ["Segment", "Transcript", "as_srt", "as_text", "transcribe"]
