"""The GGUF file format: a bounds-checked reader, and the sources a model is loaded from.

Files are mapped read-only and checked completely when they are opened. A damaged one raises
`ggmodel.errors.FormatError` with the file's name and the byte offset. Writing goes through the
`gguf` package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .buffer import MissingFile
    from .reader import GGUF, open_gguf
    from .source import JoinedSource, MemorySource, TensorInfo, TensorSource
    from .types import DType
    from .values import Array

# The module of each name, imported when first used: `import ggmodel` imports this package.
_HOMES = {
    "Array": "values",
    "DType": "types",
    "GGUF": "reader",
    "JoinedSource": "source",
    "MemorySource": "source",
    "MissingFile": "buffer",
    "TensorInfo": "source",
    "TensorSource": "source",
    "open_gguf": "reader",
}

__all__ = [
    "GGUF",
    "Array",
    "DType",
    "JoinedSource",
    "MemorySource",
    "MissingFile",
    "TensorInfo",
    "TensorSource",
    "open_gguf",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
