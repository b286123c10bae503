"""Voxtral: llama's blocks behind Whisper's encoder."""

from .model import Voxtral

__all__ = ["Voxtral"]
