"""Qwen 3.5, dense and with experts."""

from .model import Qwen35, Qwen35Moe

__all__ = ["Qwen35", "Qwen35Moe"]
