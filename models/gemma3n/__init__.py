"""Gemma 3n: the text of its models."""

from .model import Gemma3n

__all__ = ["Gemma3n"]
