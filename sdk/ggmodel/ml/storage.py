"""Where the value of a tensor that no op computes comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ComputeError, Error

if TYPE_CHECKING:
    import numpy as np

    from ..gguf.source import TensorInfo
    from .node import Node


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
        initial: bytes to begin with; None is all zero.
        handle: what the backend made of it; None before allocation.
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

    def write(self, target: np.ndarray, node: Node, step: Any) -> None:
        """Puts the values where the graph reads them."""
        target[...] = self.array


class Feed:
    """An input filled before each execution: a graph whose inputs are all feeds can be replayed.

    Attributes:
        fill: called with whatever the executor passes as the step; returns an array that
            broadcasts to the reversed shape of the tensor.
        trusted: `fill` answers for indices being in range. Those of other feeds are checked
            before each run, for a bad index would kill the process in ggml's kernels.
    """

    __slots__ = ("fill", "trusted")

    def __init__(self, fill: Callable[[Any], Any], trusted: bool = False):
        self.fill, self.trusted = fill, trusted

    def values(self, node: Node, step: Any) -> np.ndarray:
        """What `fill` gives for a step, in the shape of the feed's tensor.

        Raises:
            ComputeError: it fails, or gives something of another shape; names the feed's line.
        """
        import numpy as np

        try:
            values = np.asarray(self.fill(step))
            if values.dtype == object:
                raise TypeError(f"it returned {self.fill(step)!r}, not numbers")
            return np.broadcast_to(values, node.ne[::-1])
        except Error:
            raise
        except Exception as error:
            raise self._failure(node, error) from error

    def write(self, target: np.ndarray, node: Node, step: Any) -> None:
        """Puts the values for a step where the graph reads them; raises as `values` does."""
        try:
            target[...] = self.fill(step)
        except Error:
            raise
        except Exception as error:
            raise self._failure(node, error) from error

    def _failure(self, node: Node, error: Exception) -> ComputeError:
        site = f"\n  at {node.site}" if node.site else ""
        return ComputeError(
            f"{node.describe()} could not be filled: {type(error).__name__}: {error}{site}"
        )
