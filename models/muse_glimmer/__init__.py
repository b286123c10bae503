"""Muse Glimmer, its text."""

from .model import MuseGlimmer

__all__ = ["MuseGlimmer"]
