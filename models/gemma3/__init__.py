"""Gemma 3, with images if the file has a vision tower, and EmbeddingGemma."""

from .model import EmbeddingGemma, Gemma3

__all__ = ["EmbeddingGemma", "Gemma3"]
