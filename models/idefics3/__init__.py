"""Idefics3 and SmolVLM: tiles of a picture with text between them."""

from .model import Idefics3

__all__ = ["Idefics3"]
