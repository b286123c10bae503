"""Apertus."""

from .model import Apertus, ApertusConfig, FeedForward, Layer

__all__ = ["Apertus", "ApertusConfig", "FeedForward", "Layer"]
