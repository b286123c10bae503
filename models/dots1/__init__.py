"""dots.llm1."""

from .model import Dots1

__all__ = ["Dots1"]
