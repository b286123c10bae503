"""AFMoE, Arcee's Trinity."""

from .model import Afmoe

__all__ = ["Afmoe"]
