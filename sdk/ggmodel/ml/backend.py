"""The abstract backend: a tensor library that models run on.

The life of a backend: it is made from a tensor source and hands out logical weights; the model is
traced once; `allocate` sees which ops read which weight and decides where each lives; `load` fills
them. From then on graphs are compiled and run.
"""

from __future__ import annotations

import enum
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..closing import Closing
from ..errors import ConfigError, GraphError, Unsupported
from ..gguf_file import TensorSource
from ..gguf_file.metadata import KeyValues
from ..gguf_file.types import DType
from .context import Context
from .devices import DeviceInfo
from .gpu_layers import GPULayersList
from .graph import Graph
from .memory import BackendMemory
from .node import Node
from .placement import weights_of
from .storage import State, Weight
from .tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

Progress = Callable[[float], None]
_MOST_BLOCKS = 1 << 16  # memory is reported block by block


class FlashAttention(enum.IntEnum):
    """Whether attention runs as one fused op; AUTO lets the backend decide."""

    AUTO = -1
    OFF = 0
    ON = 1

    @classmethod
    def parse(cls, value: str | int | FlashAttention) -> FlashAttention:
        """ "auto", "on", "off" or the number."""
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        if isinstance(value, int) and value in (-1, 0, 1):
            return cls(value)
        raise Unsupported(f"flash_attention is 'auto', 'on' or 'off', not {value!r}")


class Optimize(enum.Enum):
    """The choice where each of two arrangements of a weight is faster at something: SPEED keeps
    both where memory allows, MEMORY keeps one."""

    SPEED = "speed"
    MEMORY = "memory"

    @classmethod
    def parse(cls, value: str | Optimize) -> Optimize:
        """ "speed" or "memory"."""
        try:
            return cls(value)
        except ValueError:
            raise Unsupported(f"optimize is 'speed' or 'memory', not {value!r}") from None


_KINDS: dict[str, type] = {
    "alloc_memory": bool,
    "num_threads": int,
    "gpu_layers": GPULayersList,
    "flash_attention": FlashAttention,
    "optimize": Optimize,
    "tensor_overrides": tuple,
}


@dataclass(frozen=True)
class BackendParams:
    """Options for loading and executing a model.

    Attributes:
        alloc_memory: False only measures the memory that would be needed.
        num_threads: CPU threads; 0 lets the backend choose.
        gpu_layers: the layers of each device; all others stay on the CPU.
        flash_attention: the fused attention op.
        optimize: speed or memory, where one costs the other.
        rpc: workers on other machines, "host:port", whose devices are used like this machine's.
        tensor_overrides: pairs of a regular expression and a device's name: weights whose names
            match lie there, whatever their layer. The first match counts.

    Raises:
        ConfigError: a value of the wrong type, or a negative number of threads.
    """

    alloc_memory: bool = True
    num_threads: int = 0
    gpu_layers: GPULayersList = field(default_factory=GPULayersList)
    flash_attention: FlashAttention = FlashAttention.AUTO
    optimize: Optimize = Optimize.SPEED
    rpc: tuple[str, ...] = ()
    tensor_overrides: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise ConfigError(f"{name} is {value!r:.80}; it must be of type {kind.__name__}")
        if self.num_threads < 0:
            raise ConfigError(f"num_threads is {self.num_threads}; give 1 or more, 0 chooses")
        for pair in self.tensor_overrides:
            if not (isinstance(pair, tuple) and [*map(type, pair)] == [str, str]):
                raise ConfigError(f"tensor_overrides: {pair!r:.80} is no pattern with a device")


@dataclass(frozen=True)
class CacheConfig:
    """The layout in which a backend reads keys, values and masks from a cache.

    Attributes:
        padding: the range of cells and the capacity are multiples of this.
        permuted_v: values are stored as [cells, width, kv heads], ready for the product.
        mask_dtype: F32 or F16.
        mask_batch_padding: the mask's batch dim is a multiple of this.
        parts: attention computes the rows of each sequence over cells of their own.
    """

    padding: int = 1
    permuted_v: bool = False
    mask_dtype: DType = DType.F32
    mask_batch_padding: int = 1
    parts: bool = False


class Executable(ABC):
    """A compiled graph, which runs any number of times.

    Attributes:
        states: uids of the state tensors it works on; it is closed before they are freed.
    """

    states: Set[int] = frozenset()

    @property
    @abstractmethod
    def valid(self) -> bool:
        """False once its memory is gone: compile the graph again."""

    @abstractmethod
    def run(self, step: Any = None, meanwhile: Callable[[], None] | None = None) -> None:
        """Fills the feeds from `step`, copies host inputs in and computes.

        Args:
            meanwhile: called while another processor computes, if any; it may prepare the next
                step but use no backend.

        Raises:
            ComputeError: an index out of range, or the backend failed.
        """

    def run_each(self, step: Any, seen: Callable[[Node, np.ndarray], None]) -> None:
        """`run`, op by op, with a look at intermediate results.

        Args:
            seen: called with each result and its raw value, which the next op may overwrite.
                Results without elements, or in blocks with gaps, are left out.

        Raises:
            Unsupported: the graph runs in another process.
        """
        raise Unsupported("intermediate results of another process cannot be seen: leave rpc out")

    def keep_only(self, outputs: tuple[Node, ...]) -> None:
        """Allows to forget all but what `run` and the values of these outputs need. `run_each` no
        longer works; the outputs may forget how they are computed."""
        del outputs

    @abstractmethod
    def value(self, node: Node) -> np.ndarray:
        """The raw value of an output; may be a view that the next run overwrites."""

    @abstractmethod
    def close(self) -> None:
        """Frees the graph's memory; idempotent."""


class Backend(Closing, ABC):
    """A tensor library with the weights of one model.

    Attributes:
        source: the file or files. owns_source: whether closing the backend closes it.
        config: the metadata, looked up with the architecture's prefix.
        block_count: the number of layers, by which memory is reported.
        tensors: the weights by name.
        flash_attention: whether attention uses the fused op.
        cache_config: the layout that caches must deliver.
        kept_graphs: how many compiled graphs the memory report counts.
        closed: whether `close` was called.
    """

    flash_attention: bool
    cache_config: CacheConfig

    def __init__(self, source: TensorSource, params: BackendParams):
        self.source = source
        self.owns_source = False
        self.params = params
        self.config = KeyValues(source.metadata, source.name)
        self.block_count: int = self.config.get("block_count", int) or 0
        if not 0 <= self.block_count <= _MOST_BLOCKS:
            raise ConfigError(
                f"{source.name}: {self.config.full('block_count')} is {self.block_count}, "
                f"not 0 to {_MOST_BLOCKS}"
            )
        self.tensors = weights_of(self)
        self._executables: weakref.WeakSet[Executable] = weakref.WeakSet()
        self._states: dict[int, Node] = {}
        self._allocated = False
        self.kept_graphs = 0
        self.closed = False

    def get(self, name: str) -> Tensor | None:
        """The weight of that name, or None."""
        return self.tensors.get(name)

    def allocate(self, *graphs: Graph) -> None:
        """Places weights and states by the ops of the traced graphs, and allocates them; only the
        first call does.

        Raises:
            OutOfMemory: with the memory report.
        """
        self.check_open()
        if self._allocated:
            return
        self._allocate_weights(graphs)
        self._allocated = True
        for node in self._states.values():
            self._allocate_state(node)

    @abstractmethod
    def _allocate_weights(self, graphs: tuple[Graph, ...]) -> None:
        """The part of `allocate` that comes before the states."""

    def load(
        self, progress: Progress | None = None, cancel: Callable[[], bool] | None = None
    ) -> None:
        """Fills the weights.

        Args:
            progress: called with a growing share, the last time with exactly 1.0.
            cancel: asked between chunks; True ends loading with `Cancelled`.
        """
        self.check_open()
        if not self.params.alloc_memory:
            raise GraphError("this backend was made with alloc_memory=False and cannot be loaded")
        self.allocate()
        self._read_weights(progress, cancel)

    @abstractmethod
    def _read_weights(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        """`load`, once memory is allocated."""

    def compile(self, graph: Graph, outputs: tuple[Node, ...]) -> Executable:
        """Makes the graph's schedule executable; `outputs` keep their values after a run.

        Raises:
            TensorError: the library refuses an op; names it, its operands and the model's line.
            OutOfMemory: the compute buffer does not fit.
        """
        self.check_open()
        self.allocate()
        executable = self._compile(graph, outputs)
        self._executables.add(executable)
        return executable

    @abstractmethod
    def _compile(self, graph: Graph, outputs: tuple[Node, ...]) -> Executable:
        """`compile`, once weights and states have their memory."""

    def reserve(self, graph: Graph) -> None:
        """Allocates the compute buffers this graph needs without running it."""
        self.compile(graph, ()).close()

    def batches_to_reserve(self, largest: int, graph: Graph | None = None) -> list[int]:
        """The batch sizes whose reservation, with that of the largest, covers all others: the one
        that may need most memory first, a single token last.

        Args:
            largest: tokens in the largest batch.
            graph: the largest batch's, which may show that others need less.
        """
        return [1] if largest > 1 else []

    def keep_graphs(self, n: int) -> None:
        """Sets `kept_graphs`: so many are kept to be run again."""
        self.kept_graphs = n

    def create_state(self, node: Node) -> None:
        """Gives a state tensor its memory, now or, before `allocate`, with it."""
        self.check_open()
        self._states[node.uid] = node
        try:
            if self._allocated:
                self._allocate_state(node)
        except BaseException:  # whose report counts it; the next one does not
            del self._states[node.uid]
            raise

    def free_states(self, nodes: list[Node]) -> None:
        """Frees the memory of state tensors, and the graphs that work on them."""
        freed = {node.uid for node in nodes}
        for executable in list(self._executables):
            if executable.states & freed:
                executable.close()
        for node in nodes:
            self._states.pop(node.uid, None)
            if isinstance(node.storage, State) and node.storage.handle is not None:
                self._free_state(node.storage.handle)
                node.storage.handle = None

    @abstractmethod
    def _allocate_state(self, node: Node) -> None:
        """Gives the state tensor its handle, zeroed or with the initial bytes."""

    @abstractmethod
    def _free_state(self, handle: Any) -> None:
        """Frees a handle of `_allocate_state`."""

    def read(self, node: Node) -> np.ndarray:
        """The raw value of a weight (from the file) or a state, in the reversed shape; bytes where
        numpy lacks the dtype.

        Raises:
            GraphError: the node has no value.
        """
        import numpy as np

        self.check_open()
        if isinstance(node.storage, Weight):
            raw = np.frombuffer(self.source.data(node.name), np.uint8)
            kind = node.dtype.numpy
            return raw if kind is None else raw.view(kind).reshape(node.ne[::-1])
        if isinstance(node.storage, State) and node.storage.handle is not None:
            return self._read_state(node)
        raise GraphError(f"{node.describe()} has no value")

    @abstractmethod
    def _read_state(self, node: Node) -> np.ndarray:
        """A copy of the value of an allocated state, as `read` returns it."""

    @abstractmethod
    def backend_memory(self) -> BackendMemory:
        """A snapshot of the memory required so far."""

    def backend_devices(self) -> list[DeviceInfo]:
        """The GPUs in use; after an allocation, only those that hold a part of it."""
        return []

    def close(self) -> None:
        """Frees everything; idempotent."""
        if self.closed:
            return
        self.closed = True
        for executable in list(self._executables):
            executable.close()
        self.free_states(list(self._states.values()))
        self._release()
        if self.owns_source:
            self.source.close()

    @abstractmethod
    def _release(self) -> None:
        """Frees the rest, after graphs and states."""

    def check_open(self) -> None:
        """Raises `GraphError` if this backend can compute no more."""
        if self.closed:
            raise GraphError("this backend is closed")

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
        if not isinstance(size, int) or not 0 < size <= self.default_nodes:
            raise Unsupported(f"a context holds 1 to {self.default_nodes} ops, not {size!r:.80}")
        return Context(self, size)
