"""Mistral."""

from __future__ import annotations

from .model import Mistral

__all__ = ["Mistral"]
