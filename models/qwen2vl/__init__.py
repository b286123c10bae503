"""Qwen 2-VL and 2.5-VL."""

from .model import Qwen2VL

__all__ = ["Qwen2VL"]
