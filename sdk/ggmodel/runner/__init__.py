"""Running models: loading, the engine, requests, sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..imports import lazily

if TYPE_CHECKING:
    from .engine.probes import in_graph
    from .loading.load import load
    from .options import LoadOptions
    from .request_options import ChatOptions, RequestOptions
    from .requests.completion import Completion, Piece, Usage
    from .requests.generation import AsyncStream, Stream
    from .requests.grammar import Grammar
    from .requests.loaded_model import LoadedModel
    from .requests.receipt import Receipt, Replay
    from .requests.replies import AsyncChatStream, ChatCompletion, ChatStream
    from .sampling import Sampler
    from .steering import Steering

__all__ = [
    "AsyncChatStream",
    "AsyncStream",
    "ChatCompletion",
    "ChatOptions",
    "ChatStream",
    "Completion",
    "Grammar",
    "LoadOptions",
    "LoadedModel",
    "Piece",
    "Receipt",
    "Replay",
    "RequestOptions",
    "Sampler",
    "Steering",
    "Stream",
    "Usage",
    "in_graph",
    "load",
]

# Resolved models are of this package, and names are resolved without numpy.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "engine.probes": "in_graph",
        "loading.load": "load",
        "options": "LoadOptions",
        "request_options": "ChatOptions RequestOptions",
        "requests.completion": "Completion Piece Usage",
        "requests.generation": "AsyncStream Stream",
        "requests.grammar": "Grammar",
        "requests.loaded_model": "LoadedModel",
        "requests.receipt": "Receipt Replay",
        "requests.replies": "AsyncChatStream ChatCompletion ChatStream",
        "sampling": "Sampler",
        "steering": "Steering",
    },
)
