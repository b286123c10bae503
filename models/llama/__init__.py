"""Llama, Mixtral and SmolLM."""

from .model import Experts, Layer, Llama, LlamaConfig

__all__ = ["Experts", "Layer", "Llama", "LlamaConfig"]
