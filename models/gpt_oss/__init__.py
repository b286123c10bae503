"""gpt-oss."""

from .model import GptOss

__all__ = ["GptOss"]
