"""Key/value caches: what a layer remembers, declared as data by the model."""

from __future__ import annotations

from .causal import KV_TYPES, Causal, CausalCache, LayerCache

__all__ = ["KV_TYPES", "Causal", "CausalCache", "LayerCache"]
