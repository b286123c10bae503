"""Key/value caches: what a layer remembers, declared as data by the model."""

from __future__ import annotations

from ..errors import former_names
from .bidirectional import Bidirectional, BidirectionalCache
from .cache import Cache, CacheSpec, Size
from .causal import CausalCache
from .encoder import Cross, EncoderCache, LayerObjects
from .layer import KV_TYPES, LayerCache
from .recurrent import LayerStates, Part, Recurrent, RecurrentCache
from .specs import Causal, Chunked, Sliding
from .wrapper import WrapperCache, new_cache

__all__ = [
    "KV_TYPES",
    "Bidirectional",
    "BidirectionalCache",
    "Cache",
    "CacheSpec",
    "Causal",
    "CausalCache",
    "Chunked",
    "Cross",
    "EncoderCache",
    "LayerCache",
    "LayerObjects",
    "LayerStates",
    "Part",
    "Recurrent",
    "RecurrentCache",
    "Size",
    "Sliding",
    "WrapperCache",
    "new_cache",
]

__getattr__ = former_names(__name__, {"Remembers": "CacheSpec"})
