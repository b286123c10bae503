"""Sources of the values of leaves: tensors that no op computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TensorError

if TYPE_CHECKING:
    from ..gguf_file.source import TensorInfo
    from ..gguf_file.types import DType


_AT_ONCE = 1 << 17  # elements of `Rows` that are made at once: they fit a core's cache


class Weight:
    """A logical tensor of a file. Its physical copies belong to the backend.

    Attributes:
        info: the file's description of it.
        layer: the layer it is placed and counted with; `block_count` is the output layer, −1 the
            input (CPU, immovable).
    """

    __slots__ = ("backend", "info", "layer")

    def __init__(self, backend: Any, info: TensorInfo, layer: int):
        self.backend, self.info, self.layer = backend, info, layer


class State:
    """Memory that outlives a graph and may be written by it, such as a key/value cache.

    Attributes:
        layer: the layer on whose device it lies and in whose cache figure it is counted.
        initial: the first bytes; None is all zero.
        handle: the backend's memory for it; None before allocation.
    """

    __slots__ = ("backend", "handle", "initial", "layer")

    def __init__(self, backend: Any, layer: int, initial: bytes | None = None):
        self.backend, self.layer, self.initial = backend, layer, initial
        self.handle: Any = None


class HostData:
    """Values written by the host, read anew by every execution of the graph.

    Attributes:
        array: numpy array of the reversed shape; raw uint8 [bytes] for dtypes numpy lacks.
    """

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray):
        self.array = array

    def fill(self, step: Any) -> np.ndarray:
        """The values, the same for every step."""
        return self.array


class Feed:
    """An input filled before each execution: a graph whose inputs are all feeds can be replayed.

    Attributes:
        fill: called with the run's step; returns an array that broadcasts to the reversed
            shape of the tensor, or `Rows` of that shape.
        trusted: `fill` guarantees that indices are in range. Those of other feeds are checked
            before each run, because a bad index would end the process in ggml's kernels.
    """

    __slots__ = ("fill", "trusted")

    def __init__(self, fill: Callable[[Any], Any], trusted: bool = False):
        self.fill, self.trusted = fill, trusted


class Rows:
    """Values of a feed that are made some rows at a time, as they are written: a large array, such
    as a mask, then takes no memory beside the input's own.

    Args:
        shape: of the whole array, [rows, ...].
        make: a slice of rows → their values.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, make: Callable[[slice], np.ndarray]):
        self.shape, self.dtype, self._make = shape, dtype, make
        self._at_once = max(1, _AT_ONCE * shape[0] // max(1, math.prod(shape)))

    def write(self, target: np.ndarray) -> None:
        """Writes all rows into a dense array of this shape, or of [1, …, *shape].

        Raises:
            ValueError: the array has another shape.
        """
        lead = target.ndim - len(self.shape)
        if target.shape != (1,) * lead + self.shape:
            raise ValueError(f"values of shape {self.shape} for an input {target.shape}")
        target = target.reshape(self.shape)
        for begin in range(0, self.shape[0], self._at_once):
            rows = slice(begin, begin + self._at_once)
            target[rows] = self._make(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = np.empty(self.shape, self.dtype)
        self.write(whole)
        return whole if dtype is None else whole.astype(dtype, copy=False)


def exact(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Values for a tensor: of integers as they are stored, of other numbers unchanged.

    Args:
        dtype: numpy's type of the tensor; None if numpy lacks it.

    Raises:
        ValueError: one of them is no integer of that type.
    """
    if dtype is None or np.dtype(dtype).kind not in "iu":
        return values
    with np.errstate(invalid="ignore"):  # NaN and infinity are told below
        cast = values.astype(dtype)
    wrong = np.flatnonzero(np.not_equal(cast, values))
    if wrong.size:
        raise ValueError(f"{values.reshape(-1)[wrong[0]]} is no {np.dtype(dtype).name}")
    return cast


def as_array(data: Any, dtype: DType) -> np.ndarray:
    """A sequence or array, such as a caller gives, as values of a tensor of F32 or I32.

    Raises:
        TensorError: they are no numbers, or no integers of that type.
    """
    try:
        given = np.asarray(data)
        if given.dtype.kind in "cSUO":
            raise TypeError("these are no real numbers of at most 64 bits")
        return np.asarray(exact(given, dtype.numpy), dtype.numpy)
    except (ValueError, TypeError) as error:
        raise TensorError(f"values for {dtype}: {error}") from None


def numbers(values: Any) -> np.ndarray:
    """The result of a feed's function as an array; TypeError if it is no array of numbers."""
    array = np.asarray(values)
    if array.dtype.hasobject:  # numpy would make NaN of None
        raise TypeError(f"it returned {values!r}, not numbers")
    return array
