"""The tensor interface on ggml."""

from ..registry import register_backend
from .ggml_backend import GGMLBackend

__all__ = ["GGMLBackend"]

register_backend("ggml", GGMLBackend)
