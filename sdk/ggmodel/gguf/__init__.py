"""The GGUF file format: a bounds-checked reader, and the sources a model is loaded from.

Files are mapped read-only and checked completely when they are opened; whatever is wrong with one
is a `ggmodel.errors.FormatError` that names the file and the byte offset. Writing goes through
the `gguf` package.
"""

from ggmodel.gguf.buffer import MissingFile
from ggmodel.gguf.reader import GGUF, open_gguf
from ggmodel.gguf.source import JoinedSource, MemorySource, TensorInfo, TensorSource
from ggmodel.gguf.types import DType
from ggmodel.gguf.values import Array

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
