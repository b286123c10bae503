"""One op with operands of its own, for measurements."""

from __future__ import annotations

from typing import Any

from ...errors import OutOfMemory
from ...gguf_file.types import DType
from ...native import ffi, lib
from .compute import need_success
from .memory import Arena


class Alone:
    """One op of ggml and its operands.

    Args:
        backend: the `ggml_backend_t` that computes it.
        plain: the buffer type of its tensors.
        rearranging: the buffer type of its weight, if another one.

    Attributes:
        ctx, weights_ctx: the ggml contexts of its tensors, and of its weight.
    """

    def __init__(self, backend: Any, plain: Any, rearranging: Any = None):
        self._backend, self._plain, self._rearranging = backend, plain, rearranging
        self._arenas = [Arena(8, 8), Arena(1)]
        self.ctx, self.weights_ctx = (arena.ctx for arena in self._arenas)
        self._buffers: list[Any] = []

    def computes(self, result: Any) -> None:
        """Chooses the op, and gives its tensors zeroed memory; not so a rearranged weight."""
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
            if buffer_type == plain:
                lib.ggml_backend_buffer_clear(buffer, 0)

    def multiplies(self, dtype: DType, width: int, rows: int, columns: int) -> bool:
        """Chooses the product of a zero weight [width, rows] and F32 [width, columns]; False if
        the backend has no kernel for it."""
        weight = lib.ggml_new_tensor_2d(self.weights_ctx, int(dtype), width, rows)
        x = lib.ggml_new_tensor_2d(self.ctx, lib.GGML_TYPE_F32, width, columns)
        y = lib.ggml_mul_mat(self.ctx, weight, x)
        self.computes(y)
        if not lib.ggml_backend_supports_op(self._backend, y):
            return False
        zeros = bytes(lib.ggml_nbytes(weight))  # a rearranging buffer takes a tensor as a whole
        lib.ggml_backend_tensor_set(weight, ffi.from_buffer(zeros), 0, len(zeros))
        return True

    def run(self) -> None:
        """Computes it once."""
        need_success(lib.ggml_backend_graph_compute(self._backend, self._graph))

    def close(self) -> None:
        for buffer in self._buffers:
            lib.ggml_backend_buffer_free(buffer)
        for arena in self._arenas:
            arena.close()
