"""Caches: the kinds of memory that a model can declare for its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..imports import lazily
from ..model.cache import Cache, CacheSpec, Size
from .causal import CausalCache
from .layer import KV_TYPES, LayerCache
from .specs import Causal, Chunked, Declared, Sliding, WrapperCache, new_cache, several, share_last

if TYPE_CHECKING:
    from .bidirectional import Bidirectional, BidirectionalCache
    from .compressed import Compressed, CompressedCache, LayerEntries
    from .encoder import Cross, EncoderCache, LayerObjects
    from .recurrent import LayerStates, Part, Recurrent, RecurrentCache

__all__ = [
    "KV_TYPES",
    "Bidirectional",
    "BidirectionalCache",
    "Cache",
    "CacheSpec",
    "Causal",
    "CausalCache",
    "Chunked",
    "Compressed",
    "CompressedCache",
    "Cross",
    "Declared",
    "EncoderCache",
    "LayerCache",
    "LayerEntries",
    "LayerObjects",
    "LayerStates",
    "Part",
    "Recurrent",
    "RecurrentCache",
    "Size",
    "Sliding",
    "WrapperCache",
    "new_cache",
    "several",
    "share_last",
]

# Most models declare one kind, and a start imports no other.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "bidirectional": "Bidirectional BidirectionalCache",
        "compressed": "Compressed CompressedCache LayerEntries",
        "encoder": "Cross EncoderCache LayerObjects",
        "recurrent": "LayerStates Part Recurrent RecurrentCache",
    },
)
