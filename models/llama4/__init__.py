"""Llama 4: Scout and Maverick, with images."""

from .model import Llama4

__all__ = ["Llama4"]
