"""Llama, Mixtral and SmolLM."""

from __future__ import annotations

from .model import Llama

__all__ = ["Llama"]
