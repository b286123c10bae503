"""The tensor interface: what models are written against. Knows no tensor library.

A context records ops on tensors into a graph; a backend runs it. Shapes are ggml order, dim 0 the
fastest.
"""

from ..errors import OutOfMemory
from ..gguf_file.types import DType
from .arguments import check_interface
from .backend import Backend, CacheConfig
from .context import Context
from .devices import (
    AllocationStatus,
    BackendMemory,
    DeviceComparison,
    DeviceID,
    DeviceInfo,
    DeviceMemory,
    by_free_memory,
    by_library,
    by_performance,
    flash_attention_supported,
    get_visible_devices_env,
    library_paths,
    without_duplicates,
)
from .dump import dump
from .executable import Executable
from .ops.mixing import RopeType
from .ops.spatial import SamplingMode
from .params import (
    BackendParams,
    FlashAttention,
    GPULayers,
    GPULayersList,
    Optimize,
    gpu_layers_from_split,
)
from .registry import new_backend, register_backend
from .runner_discovery import (
    BaseRunner,
    FilteredRunnerDiscovery,
    RunnerAtPort,
    RunnerDiscovery,
    get_devices_from_runner,
    refresh_free_memory,
)
from .system import SystemInfo, system_info
from .table import OPS
from .tensor import Tensor

__all__ = [
    "OPS",
    "AllocationStatus",
    "Backend",
    "BackendMemory",
    "BackendParams",
    "BaseRunner",
    "CacheConfig",
    "Context",
    "DType",
    "DeviceComparison",
    "DeviceID",
    "DeviceInfo",
    "DeviceMemory",
    "Executable",
    "FilteredRunnerDiscovery",
    "FlashAttention",
    "GPULayers",
    "GPULayersList",
    "Optimize",
    "OutOfMemory",
    "RopeType",
    "RunnerAtPort",
    "RunnerDiscovery",
    "SamplingMode",
    "SystemInfo",
    "Tensor",
    "by_free_memory",
    "by_library",
    "by_performance",
    "dump",
    "flash_attention_supported",
    "get_devices_from_runner",
    "get_visible_devices_env",
    "gpu_layers_from_split",
    "library_paths",
    "new_backend",
    "refresh_free_memory",
    "register_backend",
    "system_info",
    "without_duplicates",
]

check_interface(globals(), __all__)
