"""Gemma 2."""

from __future__ import annotations

from .model import Gemma2

__all__ = ["Gemma2"]
