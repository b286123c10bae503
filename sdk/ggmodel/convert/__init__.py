"""Hugging Face checkpoints as GGUF tensors and metadata, out of the same declarations."""

from __future__ import annotations

from .declaration import Entry, plan
from .from_hf import from_hf, metadata_of, normalise

__all__ = ["Entry", "from_hf", "metadata_of", "normalise", "plan"]
