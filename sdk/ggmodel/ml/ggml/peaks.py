"""Measures the CPU's peak rates and the overhead of single ops, with ggml's own kernels on the
model's threads, as a yardstick for the model's ops.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

from ...errors import OutOfMemory
from ...gguf_file.types import DType
from ...native import ffi, lib
from ..system import system_info
from .compute import need_success
from .hardware import Hardware
from .memory import Arena

_LEAST, _CACHES = 256 << 20, 2  # a sweep's least bytes, and its least multiple of the last cache
_SHARE = 4  # a sweep takes at most one part in so many of the free memory
_WIDTH = 4096  # of the swept rows
# A product whose operands stay in a core's own caches.
_PRODUCT = (1024, 256, 256)
_RUNS = 5


def op_overhead(hardware: Hardware) -> float:
    """Seconds of a trivial op computed alone: waking threads, waiting for them, and the calls. The
    median of many."""
    with closing(_Alone(hardware)) as alone:
        one = lib.ggml_new_tensor_1d(alone.ctx, lib.GGML_TYPE_F32, 1)
        alone.computes(lib.ggml_add(alone.ctx, one, one))
        return statistics.median(alone.run() for _ in range(200))


def read_bandwidth(hardware: Hardware) -> float | None:
    """Bytes a second that the threads read from memory beyond the caches: the best of some products
    of an F32 matrix with one column. None if free memory is too small to leave the caches."""
    nbytes = max(_LEAST, _CACHES * last_cache())
    if nbytes > system_info().free_memory // _SHARE:
        return None
    with closing(_Alone(hardware)) as alone:
        matrix = lib.ggml_new_tensor_2d(
            alone.ctx, lib.GGML_TYPE_F32, _WIDTH, nbytes // (4 * _WIDTH)
        )
        column = lib.ggml_new_tensor_1d(alone.ctx, lib.GGML_TYPE_F32, _WIDTH)
        alone.computes(lib.ggml_mul_mat(alone.ctx, matrix, column))
        return lib.ggml_nbytes(matrix) / min(alone.run() for _ in range(_RUNS))


def product_rate(hardware: Hardware, dtype: DType, buffer_type: Any = None) -> float:
    """Operations a second (a multiplication and an addition are two) of products with weights of a
    dtype: the best of some that stay in the caches.

    Args:
        buffer_type: the one that rearranges weights; None keeps the layout of the file.
    """
    width, rows, columns = _PRODUCT
    with closing(_Alone(hardware, buffer_type)) as alone:
        weight = lib.ggml_new_tensor_2d(alone.weights_ctx, int(dtype), width, rows)
        x = lib.ggml_new_tensor_2d(alone.ctx, lib.GGML_TYPE_F32, width, columns)
        alone.computes(lib.ggml_mul_mat(alone.ctx, weight, x))
        if not alone.supported:
            return 0.0
        zeros = bytes(lib.ggml_nbytes(weight))  # a rearranging buffer takes a tensor as a whole
        lib.ggml_backend_tensor_set(weight, ffi.from_buffer(zeros), 0, len(zeros))
        return 2 * width * rows * columns / min(alone.run() for _ in range(_RUNS))


def last_cache(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache of a core, shared or not; 0 if unknown."""
    found = 0
    for file in root.glob("index*/size"):
        number, unit = file.read_text().strip()[:-1], file.read_text().strip()[-1:]
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(unit)
        if scale and number.isdecimal():
            found = max(found, int(number) * scale)
    return found


class _Alone:
    """One op with operands of its own, computed on the model's threads.

    Attributes:
        ctx, weights_ctx: the ggml contexts of its tensors; the weight's may be in other memory.
    """

    def __init__(self, hardware: Hardware, buffer_type: Any = None):
        self._hardware, self._buffer_type = hardware, buffer_type
        self._arenas = [Arena(4, 4), Arena(1)]
        self.ctx = self._arenas[0].ctx
        self.weights_ctx = self._arenas[1].ctx
        self._buffers: list[Any] = []

    def computes(self, result: Any) -> None:
        """Chooses the op, and gives its tensors zeroed memory."""
        cpu = self._hardware.cpu
        plain = cpu.buffer_type
        self._graph = lib.ggml_new_graph_custom(self.ctx, 4, False)
        lib.ggml_build_forward_expand(self._graph, result)
        for ctx, buffer_type in ((self.weights_ctx, self._buffer_type or plain), (self.ctx, plain)):
            if not lib.ggml_get_first_tensor(ctx):
                continue
            buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(ctx, buffer_type)
            if not buffer:
                raise OutOfMemory("not enough memory to measure the machine's rates")
            self._buffers.append(buffer)
            if ctx == self.weights_ctx:
                usage = lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS
                lib.ggml_backend_buffer_set_usage(buffer, usage)
            if buffer_type == plain:
                lib.ggml_backend_buffer_clear(buffer, 0)
        self.supported = bool(lib.ggml_backend_supports_op(cpu.backend, result))

    def run(self) -> float:
        """Seconds of one run."""
        threads = self._hardware.threads
        started = threads.begin()
        began = perf_counter()
        status = lib.ggml_backend_graph_compute(self._hardware.cpu.backend, self._graph)
        seconds = perf_counter() - began
        threads.end(started)
        need_success(status)
        return seconds

    def close(self) -> None:
        for buffer in self._buffers:
            lib.ggml_backend_buffer_free(buffer)
        for arena in self._arenas:
            arena.close()
