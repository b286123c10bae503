"""Running models: loading, batches, sampling, generation."""

from __future__ import annotations

from .completion import Completion, Piece, Usage
from .face import LoadedModel
from .load import load
from .sampling import Sampler

__all__ = ["Completion", "LoadedModel", "Piece", "Sampler", "Usage", "load"]
