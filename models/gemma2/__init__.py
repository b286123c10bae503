"""Gemma 2."""

from .model import Gemma2

__all__ = ["Gemma2"]
