"""Measures the CPU's peak rates and the overhead of single ops, with ggml's own kernels on the
model's threads, as a yardstick for the model's ops.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

from ...gguf_file.types import DType
from ...native import lib
from ..system import system_info
from .hardware import Hardware
from .measurements import Alone, at, own_is_faster

_LEAST, _CACHES = 256 << 20, 2  # a sweep's least bytes, and its least multiple of the last cache
_SHARE = 4  # a sweep takes at most one part in so many of the free memory
_WIDTH = 4096  # of the swept rows
# A product whose operands stay in a core's own caches.
_PRODUCT = (1024, 256, 256)
_RUNS = 5


def op_overhead(hardware: Hardware) -> float:
    """Seconds of a trivial op computed alone: waking threads, waiting for them, and the calls. The
    median of many."""
    with closing(_OnThreads(hardware)) as alone:
        number = lib.ggml_new_tensor_1d(alone.ctx, lib.GGML_TYPE_F32, 1)
        alone.computes(lib.ggml_add(alone.ctx, number, number))
        return statistics.median(alone.seconds() for _ in range(200))


def read_bandwidth(hardware: Hardware) -> float | None:
    """Bytes a second that the threads read from memory beyond the caches: the best of some products
    of an F32 matrix with one column. None if free memory is too small to leave the caches."""
    nbytes = max(_LEAST, _CACHES * last_cache())
    if nbytes > system_info().free_memory // _SHARE:
        return None
    rows = nbytes // (4 * _WIDTH)
    with closing(_OnThreads(hardware)) as alone:
        alone.multiplies(DType.F32, _WIDTH, rows, 1)
        return 4 * _WIDTH * rows / min(alone.seconds() for _ in range(_RUNS))


def product_rate(hardware: Hardware, dtype: DType, buffer_type: Any = None) -> float:
    """Operations a second (a multiplication and an addition are two) of products with weights of a
    dtype: the best of some that stay in the caches.

    Args:
        buffer_type: the one that rearranges weights; None keeps the layout of the file, and takes
            our own kernel where it is faster.
    """
    width, rows, columns = _PRODUCT
    own = buffer_type is None and at(own_is_faster(dtype), columns)
    with closing(_OnThreads(hardware, buffer_type)) as alone:
        if not alone.multiplies(dtype, width, rows, columns, own):
            return 0.0
        return 2 * width * rows * columns / min(alone.seconds() for _ in range(_RUNS))


def last_cache(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache of a core, shared or not; 0 if unknown."""
    largest = 0
    for file in root.glob("index*/size"):
        number, unit = file.read_text().strip()[:-1], file.read_text().strip()[-1:]
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(unit)
        if scale and number.isdecimal():
            largest = max(largest, int(number) * scale)
    return largest


class _OnThreads(Alone):
    """An op that is computed on the model's threads."""

    def __init__(self, hardware: Hardware, rearranging: Any = None):
        super().__init__(hardware.cpu.backend, hardware.cpu.buffer_type, rearranging)
        self._threads, self.n_threads = hardware.threads, hardware.n_threads

    def seconds(self) -> float:
        """Seconds of one run."""
        started = self._threads.begin()
        began = perf_counter()
        try:
            self.run()
            return perf_counter() - began
        finally:
            self._threads.end(started)
