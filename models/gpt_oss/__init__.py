"""gpt-oss."""

from __future__ import annotations

from .model import GptOss

__all__ = ["GptOss"]
