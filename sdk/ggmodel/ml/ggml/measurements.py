"""Measurements of single ops on this machine, which choose the faster of ggml's kernels.

Products: ggml rearranges ("repacks") weights of some dtypes. Its kernels for these may be faster or
slower than those for weights as stored in the file; that depends on the dtype, the number of
columns, the processor and ggml's version. With ggml 0.25 and AVX-512 a rearranged Q4_K product of
one column takes 0.7 of the time, one of 512 columns twice the time. Each dtype is therefore tried
once, for some tenths of a second, and the result is kept in the user's cache. So are our own
kernels (products.py), which read weights as stored.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import Error, OutOfMemory
from ...gguf_file.types import DType
from ...native import cache, describe, ffi, lib, proc, version
from ...storage import write_text
from .compute import need_success
from .memory import Arena
from .products import Products, instructions, serves


class Alone:
    """One op of ggml and its operands.

    Args:
        backend: the `ggml_backend_t` that computes it.
        plain: the buffer type of its tensors.
        rearranging: the buffer type of its weight, if another one.

    Attributes:
        ctx, weights_ctx: the ggml contexts of its tensors, and of its weight.
        n_threads: the most that compute it.
    """

    n_threads = 1

    def __init__(self, backend: Any, plain: Any, rearranging: Any = None):
        self._backend, self._plain, self._rearranging = backend, plain, rearranging
        self._arenas = [Arena(8, 8), Arena(1)]
        self.ctx, self.weights_ctx = (arena.ctx for arena in self._arenas)
        self._buffers: list[Any] = []

    def computes(self, result: Any) -> None:
        """Chooses the op, and gives its tensors memory, zeroed but for the weight's."""
        plain, rearranging = self._plain, self._rearranging or self._plain
        self._graph = lib.ggml_new_graph_custom(self.ctx, 8, False)
        lib.ggml_build_forward_expand(self._graph, result)
        for ctx, buffer_type in ((self.weights_ctx, rearranging), (self.ctx, plain)):
            if not lib.ggml_get_first_tensor(ctx):
                continue
            buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(ctx, buffer_type)
            if not buffer:
                raise OutOfMemory("not enough memory to measure the machine's rates")
            self._buffers.append(buffer)
            if ctx == self.weights_ctx:
                usage = lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS
                lib.ggml_backend_buffer_set_usage(buffer, usage)
            else:
                lib.ggml_backend_buffer_clear(buffer, 0)

    def multiplies(
        self, dtype: DType, width: int, rows: int, columns: int, own: bool = False
    ) -> bool:
        """Chooses the product of a weight [width, rows] and F32 [width, columns], both of random
        bytes, by our own kernel or ggml's; False if the backend has no kernel for it."""
        weight = lib.ggml_new_tensor_2d(self.weights_ctx, int(dtype), width, rows)
        x = lib.ggml_new_tensor_2d(self.ctx, lib.GGML_TYPE_F32, width, columns)
        ours = Products(self.ctx, self.n_threads).multiply
        y = ours(weight, x) if own else lib.ggml_mul_mat(self.ctx, weight, x)
        self.computes(y)
        if not lib.ggml_backend_supports_op(self._backend, y):
            return False
        for tensor, rearranged in ((weight, self._rearranging), (x, None)):
            size, content = lib.ggml_nbytes(tensor), _content()
            if rearranged:  # it takes a whole tensor at once; a plain one needs no second copy
                content = np.resize(content, size)
            for at in range(0, size, content.size):
                n = min(content.size, size - at)
                lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(content), at, n)
        return True

    def run(self) -> None:
        """Computes it once."""
        need_success(lib.ggml_backend_graph_compute(self._backend, self._graph))

    def close(self) -> None:
        for buffer in self._buffers:
            lib.ggml_backend_buffer_free(buffer)
        for arena in self._arenas:
            arena.close()


@functools.cache
def _content() -> np.ndarray:
    """Random bytes, uint8, of which all types have scales and floats that are small and normal.

    ggml reads what F16 scales are in F32 from a table of 256 KiB. With weights of zeros that is one
    entry of it, and its products are up to twice as fast as with a model's weights.
    """
    # An odd number, so that the rows of a weight differ.
    return np.random.default_rng(1).integers(32, 64, (1 << 20) + 1, np.uint8)


log = logging.getLogger("ggmodel.ml")

COLUMNS = (1, 2, 4, 9, 16, 64, 512)
"""Column counts that are tried; others round down. More than eight have other kernels of ours."""

# The tried weight, a multiple of every block's and every tile's size. It is small enough for a
# core's own cache, so that neither the other cores nor the memory matter; but one column reads
# weights out of memory, at a speed that depends on how early a kernel fetches them.
_ROWS, _WIDTH = 256, 2048
_STREAMED_BYTES = 64 << 20
_RUNS = 4
_CLEARLY = 0.9  # share of another's time, from which on a kernel is clearly faster

# Trials on a busy machine may disagree, but two loads in a process must not: the first counts.
_decided: dict[str, tuple[bool, ...]] = {}


def own_is_faster(dtype: DType) -> tuple[bool, ...]:
    """For each of `COLUMNS` whether our own kernel is chosen: ggml's with the weight as stored is
    not clearly faster. Ours gains where threads share the memory's speed, as in no trial."""
    if not serves(dtype):
        return (False,) * len(COLUMNS)
    return _choices(f"own {instructions} {dtype.name}", lambda: _measure_own(dtype))


def plain_is_faster(dtype: DType, buffer_type: Any) -> tuple[bool, ...]:
    """For each of `COLUMNS` whether the weight as stored, with the kernel chosen for it, is clearly
    faster than the one rearranged by `buffer_type`, an extra buffer type of the CPU that serves the
    dtype."""
    own = own_is_faster(dtype)
    name = ffi.string(lib.ggml_backend_buft_name(buffer_type)).decode()
    key = f"{name} {dtype.name} {instructions if any(own) else 0}"
    return _choices(key, lambda: _measure(dtype, buffer_type, own))


def _choices(key: str, measure: Callable[[], list[bool]]) -> tuple[bool, ...]:
    """The decision of this process, else the remembered one, else a new measurement."""
    if key not in _decided:
        choices = _remembered_or_measured(key, measure)
        _decided.setdefault(key, choices)  # another thread may have been faster
        log.debug("kernels: %s, the alternative is faster: %s", key, _decided[key])
    return _decided[key]


def _remembered_or_measured(key: str, measure: Callable[[], list[bool]]) -> tuple[bool, ...]:
    remembered = _remembered()
    choices = remembered.get(key)
    if not (isinstance(choices, list) and len(choices) == len(COLUMNS)):
        try:
            choices = measure()
            # On a busy machine a second measurement may differ: then the first is not remembered.
            if choices == measure():
                remembered[key] = choices
                _remember(remembered)
        except OutOfMemory:  # what the model itself needs may still be there
            choices = [False] * len(COLUMNS)
    return tuple(bool(f) for f in choices)


def at(choice: Sequence[bool], columns: int) -> bool:
    """The entry of `plain_is_faster` or `own_is_faster` for a number of columns."""
    return choice[max(0, bisect(COLUMNS, columns) - 1)]


# measuring


def _measure(dtype: DType, buffer_type: Any, own: Sequence[bool]) -> list[bool]:
    with Bench() as bench:
        pairs = [
            [_product(bench, dtype, n, own=ours), _product(bench, dtype, n, buffer_type)]
            for n, ours in zip(COLUMNS, own, strict=True)
        ]
        return [stored < _CLEARLY * rearranged for stored, rearranged in bench.seconds(pairs)]


def _measure_own(dtype: DType) -> list[bool]:
    with Bench() as bench:
        pairs = [[_product(bench, dtype, n, own=own) for own in (True, False)] for n in COLUMNS]
        return [_CLEARLY * ours < others for ours, others in bench.seconds(pairs)]


def _product(
    bench: Bench, dtype: DType, columns: int, rearranging: Any = None, own: bool = False
) -> _Timed:
    timed = bench.timed(rearranging)
    rows = _STREAMED_BYTES // dtype.row_size(_WIDTH) // _ROWS * _ROWS if columns == 1 else _ROWS
    timed.multiplies(dtype, _WIDTH, rows, columns, own)
    return timed


class Bench:
    """A thread on which graphs are timed."""

    def __enter__(self) -> Bench:
        cpu = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
        self.backend = lib.ggml_backend_dev_init(cpu, ffi.NULL)
        registry = lib.ggml_backend_dev_backend_reg(cpu)
        proc(registry, "ggml_backend_set_n_threads")(self.backend, 1)
        self._plain = lib.ggml_backend_dev_buffer_type(cpu)
        self._undo = ExitStack()
        self._undo.callback(lib.ggml_backend_free, self.backend)
        return self

    def timed(self, rearranging: Any = None) -> _Timed:
        return self._undo.enter_context(closing(_Timed(self.backend, self._plain, rearranging)))

    def seconds(self, pairs: Sequence[Sequence[_Timed]]) -> list[list[float]]:
        """The shortest times of each pair."""
        # In turn, so that other work on the machine slows both. A factor of two decides early.
        for run in range(_RUNS):
            left = [p for p in pairs if run < 2 or 0.5 < p[0].seconds / p[1].seconds < 2]
            for timed in (timed for pair in left for timed in pair):
                timed.run()
        return [[timed.seconds for timed in pair] for pair in pairs]

    def __exit__(self, *exc: object) -> None:
        self._undo.close()


class _Timed(Alone):
    """An op that is computed again and again.

    Attributes:
        seconds: its shortest time.
    """

    seconds = float("inf")

    def run(self) -> None:
        begin = time.thread_time()  # leaves out time when others had the core
        super().run()
        self.seconds = min(self.seconds, time.thread_time() - begin)


# remembering


def _remembered() -> dict[str, Any]:
    try:
        remembered = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, Error):
        return {}
    return remembered if isinstance(remembered, dict) else {}


def _remember(choices: dict[str, Any]) -> None:
    try:
        path = _file()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(choices))
    except (OSError, Error) as error:
        log.debug("kernels: not remembered: %s", error)


def _file() -> Path:
    """The file of results for this ggml and our kernels on this kind of processor."""
    library = describe()
    own = Path(library["module"]).name
    about = (
        version,
        library["commit"],
        library["prefix"],
        sorted(library["features"].items()),
        own,
    )
    processor = sorted(library["devices"].items())
    digest = hashlib.sha256(repr((about, processor)).encode()).hexdigest()[:12]
    return cache() / f"kernels-{digest}.json"
