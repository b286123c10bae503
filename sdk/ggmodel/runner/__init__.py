"""Running models: loading, batches, sampling, generation."""

from __future__ import annotations

from .loading.load import load
from .requests.completion import Completion, Piece, Usage
from .requests.loaded_model import LoadedModel
from .requests.options import RequestOptions
from .requests.structured import Grammar
from .sampling import Sampler

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
