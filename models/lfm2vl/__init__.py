"""LFM2-VL."""

from .model import LFM2VL

__all__ = ["LFM2VL"]
