"""Llama, Mixtral and SmolLM."""

from .model import Attention, Experts, Layer, Llama, LlamaConfig

__all__ = ["Attention", "Experts", "Layer", "Llama", "LlamaConfig"]
