"""ggmodel: a model architecture is one short declarative file that runs on ggml at C++ speed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import Error

if TYPE_CHECKING:
    from . import ml, nn
    from .ml import Context, DType, Tensor
    from .model import Batch, Config, Input, Model, Module, MultimodalEmbedding, gguf, kv, register
    from .runner import Completion, Grammar, LoadedModel, Piece, Sampler, load
    from .workbench.estimate import Estimate, estimate

__version__ = "0.1.0"

# Where each public name lives. Names are imported when first used: `ggmodel --help` and tools that
# only read files need neither numpy nor ggml.
_HOMES = {
    "Batch": "model",
    "Completion": "runner",
    "Config": "model",
    "Context": "ml",
    "DType": "gguf_file",
    "MultimodalEmbedding": "model",
    "Estimate": "workbench.estimate",
    "Grammar": "runner",
    "Input": "model",
    "LoadedModel": "runner",
    "Model": "model",
    "Module": "model",
    "Piece": "runner",
    "Sampler": "runner",
    "Tensor": "ml",
    "estimate": "workbench.estimate",
    "gguf": "model",
    "kv": "model",
    "load": "runner",
    "register": "model",
}
_SUBPACKAGES = ("ml", "nn")

__all__ = [
    "Batch",
    "Completion",
    "Config",
    "Context",
    "DType",
    "Error",
    "Estimate",
    "Grammar",
    "Input",
    "LoadedModel",
    "Model",
    "Module",
    "MultimodalEmbedding",
    "Piece",
    "Sampler",
    "Tensor",
    "estimate",
    "gguf",
    "kv",
    "load",
    "ml",
    "nn",
    "register",
]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
