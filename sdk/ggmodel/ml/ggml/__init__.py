"""The tensor interface on ggml."""

from __future__ import annotations

from ..backend import register_backend
from .backend import GGMLBackend

__all__ = ["GGMLBackend"]

register_backend("ggml", GGMLBackend)
