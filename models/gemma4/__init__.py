"""Gemma 4: the text of its models, with an embedding for each layer, and with experts."""

from .model import Gemma4

__all__ = ["Gemma4"]
