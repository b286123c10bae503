"""The tensor interface: what models are written against. Knows no tensor library.

A context records ops on tensors into a graph; a backend runs it. Shapes are ggml order, dim 0 the
fastest.
"""

from __future__ import annotations

from ..gguf.types import DType
from .backend import (
    Backend,
    BackendParams,
    CacheConfig,
    Executable,
    FlashAttention,
    new_backend,
    register_backend,
)
from .context import Context
from .memory import AllocationStatus, BackendMemory, DeviceMemory
from .ops.attention import RopeType
from .ops.spatial import SamplingMode
from .table import OPS
from .tensor import Tensor

__all__ = [
    "OPS",
    "AllocationStatus",
    "Backend",
    "BackendMemory",
    "BackendParams",
    "CacheConfig",
    "Context",
    "DType",
    "DeviceMemory",
    "Executable",
    "FlashAttention",
    "RopeType",
    "SamplingMode",
    "Tensor",
    "new_backend",
    "register_backend",
]
