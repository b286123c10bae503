"""Key/value caches: what a layer remembers, declared as data by the model."""

from __future__ import annotations

from .cache import Cache, Remembers, Size
from .causal import CausalCache
from .layer import KV_TYPES, LayerCache
from .specs import Causal, Chunked, Sliding
from .wrapper import WrapperCache, new_cache

__all__ = [
    "KV_TYPES",
    "Cache",
    "Causal",
    "CausalCache",
    "Chunked",
    "LayerCache",
    "Remembers",
    "Size",
    "Sliding",
    "WrapperCache",
    "new_cache",
]
