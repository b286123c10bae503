"""LFM2, dense and with experts."""

from .model import LFM2, LFM2Moe

__all__ = ["LFM2", "LFM2Moe"]
