"""Moonshine."""

from .model import Moonshine

__all__ = ["Moonshine"]
