"""Writes down speech: what is said in a sound of any length, and when."""

from .formats import as_srt, as_text
from .transcribe import transcribe
from .transcript import Segment, Transcript

__all__ = ["Segment", "Transcript", "as_srt", "as_text", "transcribe"]
