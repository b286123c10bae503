"""Gemma 3, with images where the file has what it sees with, and EmbeddingGemma."""

from __future__ import annotations

from .model import EmbeddingGemma, Gemma3

__all__ = ["EmbeddingGemma", "Gemma3"]
