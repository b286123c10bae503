"""Running models: loading, the engine, requests, sampling."""

from .loading.load import load
from .options import LoadOptions, RequestOptions
from .requests.completion import Completion, Piece, Usage
from .requests.generation import AsyncStream, Stream
from .requests.grammar import Grammar
from .requests.loaded_model import LoadedModel
from .sampling import Sampler

__all__ = [
    "AsyncStream",
    "Completion",
    "Grammar",
    "LoadOptions",
    "LoadedModel",
    "Piece",
    "RequestOptions",
    "Sampler",
    "Stream",
    "Usage",
    "load",
]
