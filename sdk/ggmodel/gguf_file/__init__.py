"""The GGUF file format: a bounds-checked reader, and the sources a model is loaded from.

Files are mapped read-only and checked completely when they are opened. A damaged one raises
`ggmodel.errors.FormatError` with the file's name and the byte offset. Writing goes through the
`gguf` package.
"""

from ..reading import MissingFile
from .reader import GGUF, open_gguf
from .source import JoinedSource, MemorySource, TensorInfo, TensorSource
from .types import DType
from .values import Array

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
