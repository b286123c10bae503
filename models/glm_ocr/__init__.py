"""GLM-OCR."""

from .model import GlmOcr

__all__ = ["GlmOcr"]
