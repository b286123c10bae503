"""Attention by a kernel of our own (native/attention.c), a custom op of ggml on the CPU.

A tile of queries reads a block of keys and values while they are in the core's own cache, in F32;
each row of a batch reads the cells of its own sequence alone. ggml's op reads all cells for each
row, a query at a time for fewer than 64.
"""

from __future__ import annotations

from typing import Any

from ...native import ffi, lib
from .products import custom_op

_ATTEND = ffi.addressof(lib, "ggmodel_attend")
_NUMBERS = 8  # where attention's numbers begin in a node's parameters, behind ggml's own

ANY, AVX2, AVX512 = 0, 1, 2
"""Instructions of attention: those of every machine, AVX2 or NEON, AVX-512."""

instructions = lib.ggmodel_use_attention(AVX512)
"""The instructions in use, of those that this processor has; all give the same bits."""


class Attention:
    """The attentions of one graph.

    Args:
        ctx: the ggml context of their tensors.
        n_threads: the most that compute.
        in_order: the sums of a query have one order, whatever is computed beside it.
    """

    def __init__(self, ctx: Any, n_threads: int, in_order: bool):
        self._ctx, self._n_threads, self._in_order = ctx, n_threads, in_order
        self._memory: dict[int, Any] = {}

    def attend(self, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """The tensor of an op "flash_attention", [dv, heads, n, b]; NULL after a failed assert.

        Args:
            operands: query, key, value, mask or order, sinks, bias.
        """
        q, k, v, mask, sinks, bias = operands
        size = lib.ggmodel_attention_bytes(k.ne[0], v.ne[0])
        memory = self._memory.get(size)
        if memory is None:
            memory = lib.ggml_new_tensor_2d(self._ctx, lib.GGML_TYPE_I8, size, self._n_threads)
            self._memory[size] = memory
        sources = [q, k, v, memory, sinks, bias, mask]
        ne = v.ne[0], q.ne[2], q.ne[1], q.ne[3]
        t = custom_op(self._ctx, lib.GGML_TYPE_F32, ne, sources, _ATTEND)
        if t:
            numbers = attrs["scale"], attrs["softcap"], attrs.get("max_bias", 0.0), self._in_order
            ffi.cast("float *", t.op_params)[_NUMBERS : _NUMBERS + len(numbers)] = list(numbers)
        return t
