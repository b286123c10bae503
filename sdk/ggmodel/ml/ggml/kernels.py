"""Which arrangement of a weight is faster for products, measured on this machine.

ggml rearranges ("repacks") weights of some dtypes. Whether its kernels for these are faster than
those for weights as they lie in the file depends on the dtype, on how many columns are multiplied,
on the processor and on ggml's version: with ggml 0.25 and AVX-512 a Q4_K product of one column
takes 0.7 of the time when it is rearranged, one of 512 columns twice the time. So each dtype is
tried once, which takes some milliseconds, and the result is remembered in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ...errors import NativeError, OutOfMemory
from ...gguf.types import DType
from ...native import cache, describe, ffi, lib, proc, version
from .memory import Arena

log = logging.getLogger("ggmodel.ml")

COLUMNS = (1, 4, 8, 16, 64, 512)
"""The numbers of columns that are tried; others count as the next lower one."""

# Of the weight that is tried: small enough for a core's own cache, so that neither the other cores
# nor the memory matter, and a multiple of every block's and every tile's size.
_ROWS, _WIDTH = 256, 2048
_RUNS = 4
# Only what is clearly faster is worth a second copy.
_CLEARLY = 0.9


def plain_is_faster(dtype: DType, buffer_type: Any) -> tuple[bool, ...]:
    """For each of `COLUMNS` whether the weight as it lies in the file is clearly faster than the
    one rearranged by `buffer_type`, an extra buffer type of the CPU that serves the dtype."""
    name = ffi.string(lib.ggml_backend_buft_name(buffer_type)).decode()
    known = _remembered()
    key = f"{name} {dtype.name}"
    found = known.get(key)
    if not (isinstance(found, list) and len(found) == len(COLUMNS)):
        found = _measure(dtype, buffer_type)
        log.debug("kernels: %s, plain faster at %s columns: %s", key, COLUMNS, found)
        # On a busy machine the next one may say something else: it is used, not remembered.
        if found == _measure(dtype, buffer_type):
            known[key] = found
            _remember(known)
    return tuple(bool(f) for f in found)


def at(choice: Sequence[bool], columns: int) -> bool:
    """What `plain_is_faster` says of a number of columns."""
    return choice[max(0, sum(n <= columns for n in COLUMNS) - 1)]


# measuring


def _measure(dtype: DType, buffer_type: Any) -> list[bool]:
    cpu = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    backend = lib.ggml_backend_dev_init(cpu, ffi.NULL)
    registry = lib.ggml_backend_dev_backend_reg(cpu)
    proc(registry, "ggml_backend_set_n_threads")(backend, 1)
    try:
        as_it_lies = lib.ggml_backend_dev_buffer_type(cpu)
        with ExitStack() as undo:

            def product(kind: Any, columns: int) -> _Product:
                return undo.enter_context(closing(_Product(backend, kind, dtype, columns)))

            pairs = [(product(as_it_lies, n), product(buffer_type, n)) for n in COLUMNS]
            # In turn, so that what else the machine does meets both.
            for _ in range(_RUNS):
                for plain, rearranged in pairs:
                    plain.run()
                    rearranged.run()
            return [p.seconds < _CLEARLY * r.seconds for p, r in pairs]
    finally:
        lib.ggml_backend_free(backend)


class _Product:
    """A product that is computed alone.

    Attributes:
        seconds: the shortest time it took.
    """

    def __init__(self, backend: Any, buffer_type: Any, dtype: DType, columns: int):
        self._backend, self.seconds = backend, float("inf")
        self._arena = Arena(8, 8)
        ctx = self._arena.ctx
        weight = lib.ggml_new_tensor_2d(ctx, int(dtype), _WIDTH, _ROWS)
        x = lib.ggml_new_tensor_2d(ctx, lib.GGML_TYPE_F32, _WIDTH, columns)
        y = lib.ggml_mul_mat(ctx, weight, x)
        plain = lib.ggml_backend_get_default_buffer_type(backend)
        self._buffers = [_allocated(buffer_type, [weight]), _allocated(plain, [x, y])]
        usage = lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS
        lib.ggml_backend_buffer_set_usage(self._buffers[0], usage)
        zeros = bytes(lib.ggml_nbytes(weight))  # numbers do not matter, but NaN might
        lib.ggml_backend_tensor_set(weight, ffi.from_buffer(zeros), 0, len(zeros))
        lib.ggml_backend_buffer_clear(self._buffers[1], 0)
        self._graph = lib.ggml_new_graph_custom(ctx, 8, False)
        lib.ggml_build_forward_expand(self._graph, y)

    def run(self) -> None:
        begin = time.thread_time()  # without the time in which others had the core
        lib.ggml_backend_graph_compute(self._backend, self._graph)
        self.seconds = min(self.seconds, time.thread_time() - begin)

    def close(self) -> None:
        for buffer in self._buffers:
            lib.ggml_backend_buffer_free(buffer)
        self._arena.close()


def _allocated(buffer_type: Any, tensors: Sequence[Any]) -> Any:
    alignment = lib.ggml_backend_buft_get_alignment(buffer_type)
    sizes = [lib.ggml_backend_buft_get_alloc_size(buffer_type, t) for t in tensors]
    padded = [-(-size // alignment) * alignment for size in sizes]
    buffer = lib.ggml_backend_buft_alloc_buffer(buffer_type, sum(padded))
    if not buffer:
        raise OutOfMemory(f"{sum(padded):,} bytes to try kernels with cannot be had")
    address = int(ffi.cast("uintptr_t", lib.ggml_backend_buffer_get_base(buffer)))
    for t, size in zip(tensors, padded, strict=True):
        lib.ggml_backend_tensor_alloc(buffer, t, ffi.cast("void *", address))
        address += size
    return buffer


# remembering


def _remembered() -> dict[str, Any]:
    try:
        known = json.loads(_file().read_text())
    except (OSError, ValueError, NativeError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(known: dict[str, Any]) -> None:
    try:
        path = _file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".kernels-") as folder:
            new = Path(folder) / path.name
            new.write_text(json.dumps(known))
            os.replace(new, path)
    except (OSError, NativeError) as error:
        log.debug("kernels: not remembered: %s", error)


def _file() -> Path:
    """Where results for this ggml on this kind of processor are."""
    found = describe()
    about = (version, found["commit"], found["prefix"], sorted(found["features"].items()))
    processor = sorted(found["devices"].items())
    digest = hashlib.sha256(repr((about, processor)).encode()).hexdigest()[:12]
    return cache() / f"kernels-{digest}.json"
