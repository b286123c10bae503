"""PaddleOCR-VL."""

from .model import PaddleOCR

__all__ = ["PaddleOCR"]
