"""Poolside's Laguna."""

from .model import Laguna

__all__ = ["Laguna"]
