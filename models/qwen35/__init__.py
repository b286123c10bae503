"""Qwen 3.5, dense and with experts, and Qwen3-Next."""

from .model import Qwen35, Qwen35Moe
from .qwen3next import Qwen3Next

__all__ = ["Qwen3Next", "Qwen35", "Qwen35Moe"]
