"""Writes down speech: what is said in a sound of any length, and when."""

from .formats import as_srt, as_text
from .transcribe import Segment, Transcript, transcribe

__all__ = ["Segment", "Transcript", "as_srt", "as_text", "transcribe"]
