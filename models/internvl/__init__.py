"""InternVL 3 and 3.5: Qwen 2.5 or Qwen 3 with tiles of a picture."""

from .model import InternVL

__all__ = ["InternVL"]
