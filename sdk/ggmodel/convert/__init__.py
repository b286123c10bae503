"""Hugging Face checkpoints as GGUF tensors and metadata, out of the same declarations."""

from __future__ import annotations

from .from_hf import Entry, from_hf, metadata_of, normalise, plan

__all__ = ["Entry", "from_hf", "metadata_of", "normalise", "plan"]
