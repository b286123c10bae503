"""Llama 3.2 Vision: text with cross-attention to images."""

from __future__ import annotations

from .model import Mllama

__all__ = ["Mllama"]
