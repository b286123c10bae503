"""Products whose sums have one order (native/ordered.c).

ggml's own kernels choose how they add up by the numbers of columns and of threads. These do not: an
element has the same bits whatever is computed beside it. Weights with kernels of our own
(products.py) use those, all other operands ggml's dot product of one row and one column.
"""

from __future__ import annotations

from typing import Any

from ...errors import Unsupported
from ...native import ffi, lib, proc
from ..node import Node
from .products import NOTHING, End, Products, custom_op, serves, takes

_CONVERT = ffi.addressof(lib, "ggmodel_convert_columns")
_MULTIPLY = ffi.addressof(lib, "ggmodel_multiply_ordered")
_MULTIPLY_EXPERTS = ffi.addressof(lib, "ggmodel_multiply_experts_ordered")


def find_kernels() -> None:
    """Finds ggml's dot products.

    Raises:
        Unsupported: this build of ggml hides them.
    """
    cpu = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    registry = lib.ggml_backend_dev_backend_reg(cpu)
    if not lib.ggmodel_use_ordered(proc(registry, "ggml_backend_set_n_threads", "void *")):
        raise Unsupported(
            "this ggml exports no ggml_get_type_traits_cpu, which deterministic=True needs; "
            "`ggmodel ggml build` makes one that does"
        )


def ours(product: Node) -> bool:
    """Whether a product has a kernel of our own."""
    weight = product.sources[0]
    return weight is not None and serves(weight.dtype) and takes(product)


class Ordered:
    """The products of one graph.

    Args:
        ctx: the ggml context of their tensors.
        products: the graph's products by kernels of our own.
    """

    def __init__(self, ctx: Any, products: Products):
        self._ctx, self._products = ctx, products
        self._columns: dict[Any, Any] = {}

    def multiply(
        self, weight: Any, x: Any, ids: Any = None, shared: bool = False, end: End = NOTHING
    ) -> Any:
        """As `Products.multiply`, of any layout of x: the tensor of a product that is `ours`."""
        if not lib.ggml_is_contiguous(x):
            x, shared = lib.ggml_cont(self._ctx, x), False
        return self._products.multiply(weight, x, ids, shared, end)

    def product(self, weight: Any, x: Any, ids: Any = None, shared: bool = False) -> Any:
        """weight [k, m, b, c] · x [k, n, b', c'] → F32 [m, n, b', c'], or of experts with `ids`
        [used, tokens] → [m, used, tokens]; NULL after a failed assert."""
        kind = lib.ggmodel_column_type(weight.type)
        if kind < 0 or not x:
            return ffi.NULL
        if x.type not in (kind, lib.GGML_TYPE_F32):
            x = lib.ggml_cast(self._ctx, x, lib.GGML_TYPE_F32)
        columns = ffi.NULL if x.type == kind else self._converted(x, kind, shared)
        if ids is not None:
            ne = weight.ne[1], ids.ne[0], ids.ne[1], 1
            return self._op(ne, (weight, x, columns, ids), _MULTIPLY_EXPERTS)
        return self._op((weight.ne[1], *list(x.ne)[1:]), (weight, x, columns), _MULTIPLY)

    def _converted(self, x: Any, kind: int, shared: bool) -> Any:
        """The columns of x in the type that the weight's dot product takes."""
        columns = self._columns.get((x, kind))
        if columns is None:
            ne = lib.ggml_row_size(kind, x.ne[0]), x.ne[1] * x.ne[2] * x.ne[3], 1, 1
            columns = self._op(ne, (x,), _CONVERT, lib.GGML_TYPE_I8, kind)
            if shared:
                self._columns[x, kind] = columns
        return columns

    def _op(
        self,
        ne: tuple[int, ...],
        sources: tuple[Any, ...],
        kernel: Any,
        dtype: int = lib.GGML_TYPE_F32,
        data: int = 0,
    ) -> Any:
        return custom_op(self._ctx, dtype, ne, sources, kernel, ffi.cast("void *", data))
