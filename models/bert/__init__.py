"""BERT, for embeddings of texts."""

from .model import Bert

__all__ = ["Bert"]
