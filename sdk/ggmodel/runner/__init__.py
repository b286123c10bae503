"""Running models: loading, batches, sampling, generation."""

from __future__ import annotations

from .completion import Completion, Piece, Usage
from .face import LoadedModel
from .load import load
from .request import RequestOptions
from .sampling import Sampler
from .structured import Grammar

__all__ = [
    "Completion",
    "Grammar",
    "LoadedModel",
    "Piece",
    "RequestOptions",
    "Sampler",
    "Usage",
    "load",
]
