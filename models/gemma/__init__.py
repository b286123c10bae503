"""The first Gemma, and CodeGemma."""

from .model import Gemma

__all__ = ["Gemma"]
