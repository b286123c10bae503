"""Tensors: what models are written with, and their values of every dtype as float32.

Dequantisation is plain numpy; the `gguf` package decodes block formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import GraphError, TensorError, Unsupported
from ..gguf_file.types import DType
from .arguments import checked_methods
from .node import HostData, State, as_array
from .ops.arithmetic import Elementwise, Products, Reductions
from .ops.mixing import Attention, Recurrent
from .ops.shaping import Indexing, Shaping
from .ops.spatial import Spatial, Windows
from .table import F32, I32

if TYPE_CHECKING:
    import numpy as np


def to_float32(raw: np.ndarray, dtype: DType, ne: tuple[int, ...]) -> np.ndarray:
    """Dequantises.

    Args:
        raw: array of the dtype, or its raw bytes (uint8).
        ne: shape in ggml order.

    Returns:
        float32 of the reversed shape.

    Raises:
        Unsupported: a block format that the `gguf` package cannot decode.
    """
    import numpy as np

    shape = tuple(reversed(ne))
    if dtype.numpy is not None:
        return raw.astype(np.float32, copy=False).reshape(shape)
    if raw.size == 0:
        return np.zeros(shape, np.float32)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    rows = raw.reshape(-1, dtype.row_size(ne[0]))
    try:
        values = dequantize(rows, GGMLQuantizationType(dtype.value))
    except (ValueError, NotImplementedError, KeyError) as error:
        raise Unsupported(f"{dtype.name} values cannot be shown as floats: {error}") from error
    return values.reshape(shape)


def as_numbers(values: Any, finite: bool = True) -> np.ndarray | None:
    """Real numbers as float32; None for others, and for NaN and infinities.

    Args:
        finite: without it there may be −∞, which rules out a token among a head's results.
    """
    import numpy as np

    try:
        array = np.asarray(values)
    except ValueError:  # rows of several lengths
        return None
    if array.dtype.kind in "cOSUmMV":
        return None
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, np.float32)
    return array if (np.abs(array) if finite else array).max(initial=0) < np.inf else None


@checked_methods(own=("dim", "stride"))
class Tensor(
    Elementwise, Products, Reductions, Shaping, Indexing, Attention, Spatial, Windows, Recurrent
):
    """An n-dimensional array in a recorded graph. Only `copy`, `set_rows` and `set_inplace` write
    to an operand.

    Shapes are in ggml order: dim 0 is the fastest; numpy arrays have the reversed shape.

    Attributes:
        dtype: the format of its elements.
        name: its path in the model, `blk.3.attn.q`, or the author's name for it.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        raise TensorError(
            f"{self.describe()} is neither true nor false while a graph is recorded: compare with "
            "None (`if x is not None`), or decide by values that were computed (`x.numpy()`)"
        )

    def raw(self) -> np.ndarray:
        """The value as computed: the dtype's numpy array of reversed shape, or, for dtypes numpy
        lacks, raw bytes (uint8).

        Raises:
            GraphError: it is the result of an op and no `compute` returned it.
        """
        if self.value is not None:
            return self.value
        if isinstance(self.storage, HostData):
            return self.storage.array
        backend = getattr(self.storage, "backend", None)
        if backend is None:
            raise GraphError(
                f"{self.describe()} has no value; call ctx.forward(t).compute(t) with it first"
            )
        return backend.read(self)

    def bytes(self) -> bytes:
        """The value's bytes, contiguous, in the tensor's dtype."""
        return self.raw().tobytes()

    def floats(self) -> np.ndarray:
        """The value as a flat float32 array, dim 0 fastest; quantised values are dequantised."""
        return to_float32(self.raw(), self.dtype, self.ne).reshape(-1)

    def numpy(self) -> np.ndarray:
        """The value as a numpy array of the reversed shape; float32 for dtypes numpy lacks."""
        raw = self.raw()
        if self.dtype.numpy is None:
            raw = to_float32(raw, self.dtype, self.ne)
        return raw.reshape(self.shape[::-1])

    def from_bytes(self, data: bytes | memoryview) -> None:
        """Sets the value of a tensor of `ctx.input()` or `ctx.layer(i)` from bytes in its dtype."""
        import numpy as np

        raw = np.frombuffer(data, np.uint8)
        self._check_count(raw.nbytes, self.nbytes, "bytes")
        self._write(raw)

    def from_floats(self, data: object) -> None:
        """Sets the value of an F32 tensor of `ctx.input()` or `ctx.layer(i)`; any sequence or array
        of its element count."""
        self._assign(data, F32)

    def from_ints(self, data: object) -> None:
        """Sets the value of an I32 tensor of `ctx.input()` or `ctx.layer(i)`; any sequence or array
        of its element count.

        Raises:
            TensorError: a value is no 32-bit integer.
        """
        self._assign(data, I32)

    def _assign(self, data: object, dtype: DType) -> None:
        import numpy as np

        if self.dtype is not dtype:
            raise TensorError(f"{self.describe()} is not {dtype}; use from_bytes")
        values = as_array(data, dtype)
        self._check_count(values.size, self.n_elements, "elements")
        self._write(np.ascontiguousarray(values).reshape(-1).view(np.uint8))

    def _write(self, raw: np.ndarray) -> None:
        import numpy as np

        if isinstance(self.storage, HostData):
            self.storage.array.reshape(-1).view(np.uint8)[:] = raw
        elif isinstance(self.storage, State):
            self.storage.backend.write(self, raw.tobytes())
        else:
            raise TensorError(
                f"{self.describe()} cannot be set; only tensors of ctx.input() and ctx.layer(i) are"
            )

    def _check_count(self, count: int, expected: int, unit: str) -> None:
        if count != expected:
            raise TensorError(f"{self.describe()} takes {expected} {unit}, {count} were given")
