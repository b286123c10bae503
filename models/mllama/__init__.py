"""Llama 3.2 Vision: text with cross-attention to images."""

from .model import Mllama

__all__ = ["Mllama"]
