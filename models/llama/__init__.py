"""Llama, Mixtral and SmolLM."""

from __future__ import annotations

from .model import Attention, Experts, Layer, Llama, LlamaConfig

__all__ = ["Attention", "Experts", "Layer", "Llama", "LlamaConfig"]
