"""Qwen2-Audio: Qwen 2 behind Whisper's encoder."""

from .model import Qwen2Audio

__all__ = ["Qwen2Audio"]
