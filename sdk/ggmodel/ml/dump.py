"""Tensors as text, the way numpy prints arrays."""

from __future__ import annotations

import sys
from types import NoneType
from typing import TYPE_CHECKING

from ..errors import GraphError, TensorError
from ..gguf_file.types import DType
from .context import Context, run_once
from .tensor import Tensor, to_float32

if TYPE_CHECKING:
    import numpy as np


def dump(
    first: Context | Tensor,
    second: Tensor | None = None,
    /,
    *,
    precision: int = 4,
    threshold: int = 1000,
    edge_items: int = 3,
) -> str:
    """A tensor's values in nested brackets, dim 0 innermost.

    Floats have a fixed number of decimals; quantised values are dequantised. A tensor without a
    value is computed first: its context must be open, and its feeds must need no step.

    Args:
        first, second: the tensor, or its context and the tensor.
        precision: decimals of floats.
        threshold: a tensor of more elements is shown by its edges.
        edge_items: how many elements at either end of a dim are then shown.

    Raises:
        TensorError: no tensor is given, `precision` is negative, or `edge_items` below 1.
        GraphError: the tensor is a feed or its context is closed.
        Unsupported: a block format that cannot be dequantised.
    """
    import numpy as np

    if precision < 0 or edge_items < 1:
        raise TensorError(
            f"precision is 0 or more, edge_items 1 or more, not {precision}, {edge_items}"
        )
    ctx, tensor = (None, first) if second is None else (first, second)
    if not isinstance(tensor, Tensor) or not isinstance(ctx, (Context, NoneType)):
        kind = type(tensor).__name__
        raise TensorError(f"dump takes a tensor, or its context and the tensor, not {kind}")
    tensor = _computed(ctx, tensor)
    shortened = tensor.n_elements > threshold
    values = _edges(tensor, edge_items if shortened else tensor.n_elements)
    flat = values.ravel().tolist()
    texts = [f"{v:.{precision}f}" if isinstance(v, float) else str(v) for v in flat]
    width = max(map(len, texts), default=0)
    padded = np.array([text.rjust(width) for text in texts], object)
    return np.array2string(
        padded.reshape(values.shape),
        max_line_width=sys.maxsize,
        separator=", ",
        threshold=0 if shortened else sys.maxsize,
        edgeitems=edge_items,
        formatter={"all": str},
    )


def _computed(ctx: Context | None, tensor: Tensor) -> Tensor:
    """The tensor, or one of the same values, with its value."""
    if tensor.op is None or tensor.value is not None:
        return tensor
    if tensor.dtype.numpy is None and not tensor.is_contiguous:
        tensor = tensor.cast(DType.F32)  # strided blocks have no value that numpy could hold
    graph = tensor.graph
    assert graph is not None  # every op's result has one
    if ctx is not None:
        ctx.compute(tensor)
        return tensor
    if graph.closed:
        raise GraphError(f"{tensor.describe()} has no value, and its context is closed")
    graph.forward(tensor)
    run_once(graph, (tensor,))
    return tensor


def _edges(tensor: Tensor, edge_items: int) -> np.ndarray:
    """The values; a long dim keeps both ends and one element for all between.

    Only these are dequantised: a weight may have billions of elements.
    """
    import numpy as np

    def ends(n: int) -> list[int]:
        if n <= 2 * edge_items:
            return list(range(n))
        # Numpy prints dots for the middle; a copy of a shown element makes no column wider.
        return [*range(edge_items), edge_items - 1, *range(n - edge_items, n)]

    shape = tensor.shape[::-1]
    dtype = tensor.dtype
    raw = tensor.raw()
    if dtype.numpy is None:
        rows = raw.reshape(*shape[:-1], dtype.row_size(shape[-1]))
        rows = rows[np.ix_(*map(ends, shape[:-1]))] if rows.ndim > 1 else rows
        values = to_float32(rows, dtype, (shape[-1], *rows.shape[-2::-1]))
    else:
        values = raw.reshape(shape)
        values = values[np.ix_(*map(ends, shape[:-1]))] if values.ndim > 1 else values
    return values[..., ends(shape[-1])]
