"""Products of weights by kernels of our own (native/products.c).

ggml computes them as custom ops, in its thread pool: one node quantises the activations, whose
result all products of the same activations read, and one multiplies. Weights are read as they lie
in the file, and become bytes a panel at a time, or for few columns some rows at a time.
Float weights become F32, and their activations stay it: none is rounded. Unless all bits must be
the same in any batch, F16 and BF16 weights, but experts, multiply more than eight columns as whole
numbers of 14 and 15 bits by AVX-512 and AVX2 (native/rounded.h), mostly of less than half the error
of ggml's F16. ggml's kernels are faster for some types and numbers of columns, so that both are
tried (measurements.py); benchmarks/products.py compares them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...gguf_file.types import DType
from ...native import ffi, lib
from ..node import Node

_BLOCK = 32  # of native/products.h
_FEW = 8  # of native/products.h: columns, at most, of which none is rounded
_ALL_THREADS = -1  # GGML_N_TASKS_MAX; a kernel for one thread returns in the others
_MULTIPLY = ffi.addressof(lib, "ggmodel_multiply")
_FINISH = ffi.addressof(lib, "ggmodel_finish")
_MULTIPLY_EXPERTS = ffi.addressof(lib, "ggmodel_multiply_experts")
_SORT_EXPERTS = ffi.addressof(lib, "ggmodel_sort_experts")
_QUANTIZE = ffi.addressof(lib, "ggmodel_quantize")
_ROUND = ffi.addressof(lib, "ggmodel_round")

NAMES = ("none", "AVX2", "AVX-VNNI", "AVX-512 VNNI", "AMX", "NEON dot product")
"""Families of instructions by their number; AMX is for more than eight columns. All give the same
bits, but of F16 and BF16 weights with more than eight columns: NEON does not round these."""

LEAST = 1 << 16
"""Weights of a product: of fewer, as in tiny models, each thread has little but the start."""

instructions = lib.ggmodel_use_products(len(NAMES) - 1)
"""The number of the family in use: the last one that this processor has."""


End = tuple[int, Any, Any, Any]
"""The end of each element, activation(x + bias) · factor + residual: a number of
`endings.ACTIVATIONS`; the tensors of a bias F32 [m], a factor and a residual F32 [m, …], each NULL
if it is left out."""
NOTHING: End = (0, ffi.NULL, ffi.NULL, ffi.NULL)


def serves(dtype: DType) -> bool:
    """Whether there is a kernel for weights of this type on this processor."""
    return lib.ggmodel_multiplies(int(dtype))


def fits(product: Node) -> bool:
    """Whether the kernels take the operands of a product: F32 activations that lie densely, and
    weights that are one matrix [k, m], or one for each expert, and not tiny: there they gain
    nothing."""
    x = product.sources[1]
    assert x is not None
    return x.is_contiguous and x.dtype is DType.F32 and takes(product)


def takes(product: Node) -> bool:
    """Whether the kernels take the weight of a product, see `fits`."""
    weight = product.sources[0]
    assert weight is not None and product.op is not None
    matrices = product.op.name == "mulmat_id" or weight.n_elements == weight.ne[0] * weight.ne[1]
    large = weight.n_elements >= LEAST and not weight.ne[0] % _BLOCK
    return weight.is_contiguous and matrices and large


class Products:
    """The products of one graph, which share what they read.

    Args:
        ctx: the ggml context of their tensors.
        n_threads: the most that compute.
        in_order: elements have the same bits in any batch.
    """

    def __init__(self, ctx: Any, n_threads: int, in_order: bool = False):
        self._ctx, self._n_threads, self._in_order = ctx, n_threads, in_order
        self._orders: dict[Any, Any] = {}
        self._columns: dict[Any, Any] = {}
        self._panels: Any = None

    def multiply(
        self,
        weight: Any,
        x: Any,
        ids: Any = None,
        shared: bool = False,
        end: End = NOTHING,
    ) -> Any:
        """The tensor [m, n, …] of a weight [k, m] of a type that `serves`, and F32 x [k, n, …]; or
        with `ids` [used, tokens], [m, used, tokens] of experts [k, m, experts] and x [k, 1 or more,
        tokens]. NULL after a failed assert.

        Args:
            shared: other products may read the same operands, which nothing overwrites between.
            end: what becomes of the elements; of experts nothing.
        """
        if self._panels is None:
            size = lib.ggmodel_panel_bytes()
            self._panels = lib.ggml_new_tensor_2d(
                self._ctx, lib.GGML_TYPE_I8, size, self._n_threads
            )
        order = self._order(ids, weight, shared) if ids else None
        together, rounds = lib.ggmodel_blocks_of_a_scale(weight.type), self._rounds(weight, x, ids)
        key = x, ids, together
        columns = self._columns.get(key) if together or rounds else x
        if columns is None:
            if rounds:
                columns = self._rounded(x, weight)
            else:
                columns = self._quantize(x, ids, order, weight, together)
            if shared:
                self._columns[key] = columns
        sources = (weight, columns, self._panels)
        if ids:
            ne = (weight.ne[1], ids.ne[0], ids.ne[1], 1)
            return self._op(lib.GGML_TYPE_F32, ne, (*sources, order), _MULTIPLY_EXPERTS)
        ne = (weight.ne[1], *list(x.ne)[1:])
        activation, *beside = end
        return self._op(lib.GGML_TYPE_F32, ne, sources, _MULTIPLY, activation, beside)

    def finish(self, x: Any, end: End) -> Any:
        """The tensor of what becomes of F32 x [m, …]; NULL after a failed assert."""
        activation, *beside = end
        return self._op(lib.GGML_TYPE_F32, tuple(x.ne), (x,), _FINISH, activation, beside)

    def _order(self, ids: Any, weight: Any, shared: bool) -> Any:
        """The columns by experts, in groups."""
        if (order := self._orders.get(ids)) is None:
            size = lib.ggmodel_order_values(ids.ne[0] * ids.ne[1], weight.ne[2])
            ne = (size, 1, 1, 1)
            order = self._op(lib.GGML_TYPE_I32, ne, (ids, weight), _SORT_EXPERTS)
            if shared:
                self._orders[ids] = order
        return order

    def _rounds(self, weight: Any, x: Any, ids: Any) -> bool:
        """Whether the columns of a product are rounded to 15 bits."""
        many = not self._in_order and not ids and math.prod(list(x.ne)[1:]) > _FEW
        return many and lib.ggmodel_rounded_bytes(weight.type, _BLOCK) > 0

    def _rounded(self, x: Any, weight: Any) -> Any:
        """The columns, each in a row of bytes."""
        k, *n = x.ne
        ne = (lib.ggmodel_rounded_bytes(weight.type, k), math.prod(n), 1, 1)
        return self._op(lib.GGML_TYPE_I8, ne, (x,), _ROUND)

    def _quantize(self, x: Any, ids: Any, order: Any, weight: Any, together: int) -> Any:
        """The columns, with one scale for so many blocks `together`."""
        k, *n = x.ne
        count, sources = math.prod(n), (x,)
        if ids:
            sources = (x, order, ids, weight)
            count = (order.ne[0] - weight.ne[2] - 1) if order else 0
        ne = (lib.ggmodel_columns_bytes(k, count), 1, 1, 1)
        return self._op(lib.GGML_TYPE_I8, ne, sources, _QUANTIZE, data=together)

    def _op(
        self,
        dtype: int,
        ne: tuple[int, ...],
        sources: tuple[Any, ...],
        kernel: Any,
        data: int = 0,
        beside: Sequence[Any] = (),
    ) -> Any:
        if not all(sources):
            return ffi.NULL  # an assert has failed
        operands = (*sources, *beside)
        return custom_op(self._ctx, dtype, ne, operands, kernel, ffi.cast("void *", data))


def custom_op(
    ctx: Any,
    dtype: int,
    ne: tuple[int, ...],
    sources: Sequence[Any],
    kernel: Any,
    data: Any = ffi.NULL,
) -> Any:
    """The tensor [ne…] that a kernel of native/ computes, called in each thread; NULL after a
    failed assert.

    Args:
        sources: at most nine tensors; NULL for one that is left out.
        data: the kernel's last argument, a pointer.
    """
    count = len(sources)
    return lib.ggml_custom_4d(ctx, dtype, *ne, list(sources), count, kernel, _ALL_THREADS, data)
