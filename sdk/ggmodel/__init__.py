"""ggmodel: a model architecture is one short declarative file that runs on ggml at C++ speed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import Error
from .resources import import_numpy, reported

if TYPE_CHECKING:
    from .bounds import limits
    from .convert import quantize
    from .gguf_file import open_gguf
    from .loading import load
    from .ml import Context, DType, Tensor
    from .model import Batch, Config, Input, Model, Module, MultimodalEmbedding, gguf, kv, register
    from .names import find
    from .runner import (
        ChatCompletion,
        Completion,
        Grammar,
        LoadedModel,
        LoadOptions,
        Piece,
        RequestOptions,
        Sampler,
        Steering,
        Stream,
        Usage,
        in_graph,
    )
    from .tokenizer import Tokenizer
    from .transcript import transcribe
    from .workbench.certify import Certificate, certify
    from .workbench.estimate import Estimate, estimate

__version__ = "0.1.0"

# Public names by their home, imported when first used: `ggmodel --help` and tools that only read
# files need neither numpy nor ggml.
_NAMES_OF = {
    "bounds": "limits",
    "convert": "quantize",
    "gguf_file": "DType open_gguf",
    "loading": "load",
    "ml": "Context Tensor",
    "model": "Batch Config Input Model Module MultimodalEmbedding gguf kv register",
    "names": "find",
    "runner": "ChatCompletion Completion Grammar LoadOptions LoadedModel Piece "
    "RequestOptions Sampler Steering Stream Usage in_graph",
    "tokenizer": "Tokenizer",
    "transcript": "transcribe",
    "workbench.certify": "Certificate certify",
    "workbench.estimate": "Estimate estimate",
}
_HOMES = {name: home for home, names in _NAMES_OF.items() for name in names.split()}
_SUBPACKAGES = "audio chat convert errors image kvcache ml models nn video workbench".split()
_WITHOUT_NUMPY = ("bounds", "errors", "gguf_file", "names")

__all__ = [
    "Batch",
    "Certificate",
    "ChatCompletion",
    "Completion",
    "Config",
    "Context",
    "DType",
    "Error",
    "Estimate",
    "Grammar",
    "Input",
    "LoadOptions",
    "LoadedModel",
    "Model",
    "Module",
    "MultimodalEmbedding",
    "Piece",
    "RequestOptions",
    "Sampler",
    "Steering",
    "Stream",
    "Tensor",
    "Tokenizer",
    "Usage",
    "audio",
    "certify",
    "chat",
    "convert",
    "errors",
    "estimate",
    "find",
    "gguf",
    "image",
    "in_graph",
    "kv",
    "kvcache",
    "limits",
    "load",
    "ml",
    "models",
    "nn",
    "open_gguf",
    "quantize",
    "register",
    "transcribe",
    "video",
]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return _import(name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import(_HOMES[name]), name)
    globals()[name] = value
    return value


@reported
def _import(name: str) -> Any:
    if name not in _WITHOUT_NUMPY:
        import_numpy()
    return importlib.import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
