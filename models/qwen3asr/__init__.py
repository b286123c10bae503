"""Qwen3-ASR: Qwen 3 behind an encoder that hears sounds second by second."""

from .model import Qwen3ASR

__all__ = ["Qwen3ASR"]
