"""Values of every dtype as float32, in plain numpy; the `gguf` package decodes block formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Unsupported
from ..gguf_file.types import DType

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
