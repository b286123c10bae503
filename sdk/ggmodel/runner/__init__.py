"""Running models: loading, the engine, requests, sampling."""

from .loading.load import load
from .loading.options import LoadOptions
from .requests.completion import Completion, Piece, Usage
from .requests.loaded_model import LoadedModel
from .requests.options import RequestOptions
from .requests.stream import AsyncStream, Stream
from .requests.structured import Grammar
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
