"""Whisper."""

from .model import Whisper

__all__ = ["Whisper"]
