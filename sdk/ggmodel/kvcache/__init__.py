"""Caches: the kinds of memory that a model can declare for its layers."""

from ..model.cache import Cache, CacheSpec, Size
from .bidirectional import Bidirectional, BidirectionalCache
from .causal import CausalCache
from .compressed import Compressed, CompressedCache, LayerEntries
from .encoder import Cross, EncoderCache, LayerObjects
from .layer import KV_TYPES, LayerCache
from .recurrent import LayerStates, Part, Recurrent, RecurrentCache
from .specs import Causal, Chunked, Declared, Sliding, WrapperCache, new_cache, several, share_last

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
