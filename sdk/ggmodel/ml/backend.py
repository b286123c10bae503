"""The abstract backend: a tensor library that models run on.

The life of a backend: it is made from a tensor source and hands out logical weights; the model is
traced once; `allocate` sees which ops read which weight and decides where each lives; `load` fills
them. From then on graphs are compiled and run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError, GraphError, Unsupported
from ..gguf_file import TensorSource
from ..gguf_file.types import DType
from ..gguf_file.values import KeyValues
from .arguments import checked_methods
from .context import Context, Executor
from .devices import BackendMemory, DeviceInfo
from .node import Node, State, Weight
from .params import BackendParams, blocks_of, layer_of
from .table import pad4
from .tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

Progress = Callable[[float], None]
_MOST_BLOCKS = 1 << 16  # memory is reported block by block


@dataclass(frozen=True)
class CacheConfig:
    """The layout in which a backend reads keys, values and masks from a cache.

    Attributes:
        padding: the range of cells and the capacity are multiples of this.
        permuted_v: values are stored as [cells, width, kv heads], ready for the product.
        mask_dtype: F32 or F16.
        mask_batch_padding: the mask's batch dim is a multiple of this.
        ordered: attention takes, in place of a mask, an order: the cells that each row sees, by
            position, see `ml.ops.mixing.ORDER_ROW`.
    """

    padding: int = 1
    permuted_v: bool = False
    mask_dtype: DType = DType.F32
    mask_batch_padding: int = 1
    ordered: bool = False


@checked_methods("load", own=("new_context_size",))
class Backend(Executor):
    """A tensor library with the weights of one model, which threads use in turns.

    Attributes:
        source: the file or files. owns_source: whether closing the backend closes it.
        config: the metadata, looked up with the architecture's prefix.
        tensors: the weights by name.
        flash_attention: whether attention uses the fused op.
        cache_config: the layout that caches must deliver.
        kept_graphs: how many compiled graphs the memory report counts.
    """

    flash_attention: bool
    cache_config: CacheConfig

    def __init_subclass__(cls) -> None:
        checked_methods("load")(cls)

    def __init__(self, source: TensorSource, params: BackendParams):
        super().__init__()
        self.source = source
        self.owns_source = False
        self.params = params
        self.config = KeyValues(source.metadata, source.name)
        self.block_count = blocks_of(self.config)
        if not 0 <= self.block_count <= _MOST_BLOCKS:
            raise ConfigError(
                f"{source.name}: {self.config.full('block_count')} is {self.block_count}, "
                f"not 0 to {_MOST_BLOCKS}"
            )
        self.tensors: dict[str, Tensor] = {}
        for name, info in source.tensors.items():
            node = self.tensors[name] = Tensor(pad4(info.shape), info.dtype, name=name)
            node.storage = Weight(self, info, layer_of(name, self.block_count))
        self.kept_graphs = 0

    def get(self, name: str) -> Tensor | None:
        """The weight of that name, or None."""
        return self.tensors.get(name)

    def load(
        self, progress: Progress | None = None, cancel: Callable[[], bool] | None = None
    ) -> None:
        """Fills the weights.

        Args:
            progress: called with a growing share, the last time with exactly 1.0.
            cancel: asked between chunks; True ends loading with `Cancelled`.

        Raises:
            FormatError: a file has changed since it was opened.
        """
        self.check_open()
        for called in (progress, cancel):
            if called is not None and not callable(called):
                raise GraphError(f"load calls {called!r:.80}, which is no function")
        if not self.params.alloc_memory:
            raise GraphError("this backend was made with alloc_memory=False and cannot be loaded")
        self.turn.alone(self._load, progress, cancel)

    def _load(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        self.allocate()
        self._read_weights(progress, cancel)
        self.source.check_unchanged()

    @abstractmethod
    def _read_weights(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        """`load`, once memory is allocated."""

    def batches_to_reserve(self, largest: int) -> list[int]:
        """The batch sizes whose reservation, with that of the largest, covers all others: the one
        that may need most memory first, a single token last.

        Args:
            largest: tokens in the largest batch.
        """
        return [1] if largest > 1 else []

    def keep_graphs(self, n: int) -> None:
        """Sets `kept_graphs`: so many are kept to be run again."""
        self.kept_graphs = n

    def read(self, node: Node) -> np.ndarray:
        """The raw value of a weight (from the file) or a state, in the reversed shape; bytes where
        numpy lacks the dtype.

        Raises:
            FormatError: the weight's file has changed since it was opened.
            GraphError: the node has no value.
        """
        import numpy as np

        self.check_open()
        if isinstance(node.storage, Weight):
            raw = np.frombuffer(self.source.data(node.name), np.uint8)
            self.source.check_unchanged((node.storage.info.file,))
            kind = node.dtype.numpy
            return raw if kind is None else raw.view(kind).reshape(node.ne[::-1])
        with self.turn.lock:
            self.check_open()
            if isinstance(node.storage, State) and node.storage.handle is not None:
                return self._read_state(node)
        raise GraphError(f"{node.describe()} has no value")

    @abstractmethod
    def _read_state(self, node: Node) -> np.ndarray:
        """A copy of the value of an allocated state, as `read` returns it."""

    def write(self, node: Node, data: bytes) -> None:
        """Sets the value of a state to the bytes of a contiguous tensor.

        Raises:
            GraphError: the node is no state of this backend, or was freed; or this is called in a
                feed, or another function that a computation calls.
        """
        self.check_open()
        with self.turn.lock:
            self.check_open()
            self.turn.check()
            if self._states.get(node.uid) is not node:
                raise GraphError(f"{node.describe()} was freed with its context")
            if len(data) != node.nbytes:
                raise GraphError(f"{node.describe()} takes {node.nbytes} bytes, not {len(data)}")
            self._write_state(node, data)

    @abstractmethod
    def _write_state(self, node: Node, data: bytes) -> None:
        """Sets the value of a state, which has no handle before `allocate`."""

    def read_rows(self, node: Node, rows: np.ndarray) -> np.ndarray:
        """The bytes of some rows of a state, uint8 [n, bytes of a row].

        Args:
            rows: int64 [n], of the state as one matrix.

        Raises:
            GraphError: the node has no value.
        """
        with self.turn.lock:
            self.check_open()
            if isinstance(node.storage, State) and node.storage.handle is not None:
                return self._read_rows(node, rows)
        raise GraphError(f"{node.describe()} has no value")

    @abstractmethod
    def _read_rows(self, node: Node, rows: np.ndarray) -> np.ndarray:
        """A copy of rows of an allocated state, see `read_rows`."""

    def write_rows(self, node: Node, rows: np.ndarray, data: np.ndarray) -> None:
        """Sets rows of a state to what `read_rows` returned for as many.

        Raises:
            GraphError: the node has no value, or a computation calls this.
        """
        with self.turn.lock:
            self.check_open()
            self.turn.check()
            if not isinstance(node.storage, State) or node.storage.handle is None:
                raise GraphError(f"{node.describe()} has no value")
            self._write_rows(node, rows, data)

    @abstractmethod
    def _write_rows(self, node: Node, rows: np.ndarray, data: np.ndarray) -> None:
        """Sets rows of an allocated state, see `write_rows`."""

    @abstractmethod
    def backend_memory(self) -> BackendMemory:
        """A snapshot of the memory required so far."""

    def backend_devices(self) -> list[DeviceInfo]:
        """The GPUs in use; after an allocation, only those that hold a part of it."""
        return []

    def _free(self) -> None:
        for executable in list(self._executables):
            executable._close()
        self._free_states(list(self._states.values()))
        self._release()
        if self.owns_source:
            self.source.close()

    @abstractmethod
    def _release(self) -> None:
        """Frees the rest, after graphs and states."""

    def check_files(self) -> None:
        """Raises `FormatError` if a file that weights are read from has changed since it was
        opened: results may be wrong. Called after each run."""
        self.source.check_unchanged()

    def new_context(self) -> Context:
        """A context with the default node limit, max(1024, 32 × tensors)."""
        return self.new_context_size(self.default_nodes)

    @property
    def default_nodes(self) -> int:
        """The most ops a context may hold."""
        return max(1024, 32 * len(self.source.tensors))

    def new_context_size(self, size: int) -> Context:
        """A context for graphs of up to `size` ops.

        Raises:
            Unsupported: more than the default limit.
            GraphError: the backend is closed.
        """
        self.check_open()
        if type(size) is not int or not 0 < size <= self.default_nodes:
            raise Unsupported(f"a context holds 1 to {self.default_nodes} ops, not {size!r:.80}")
        return Context(self, size)
