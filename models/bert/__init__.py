"""BERT, for embeddings of texts."""

from __future__ import annotations

from .model import Bert

__all__ = ["Bert"]
