"""The backend in this process that represents one in another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import ConfigError, Error, GraphError
from ...gguf_file import TensorSource
from ..backend import Backend, Progress
from ..devices import BackendMemory, DeviceInfo
from ..executable import Executable
from ..graph import Graph, values_of
from ..node import Feed, HostData, Node, State, Weight
from ..params import BackendParams
from .conversation import NoAnswer
from .protocol import Leaf, describe, pack_graph
from .runner_process import RunnerProcess

_TIMEOUT = 2.0  # seconds for requests without which closing can go on


class ProcessBackend(Backend):
    """A backend in a `RunnerProcess`. Feeds are filled here, all else happens there.

    After the end of the process everything but `get` and `close` raises `DeviceLost`.

    Args:
        params: for the backend in the process. The workers in `rpc` must be those of `runner`.
        runner: the process; None starts one, with the workers in `params.rpc`, that ends with the
            backend.
        name: of the backend there, "ggml" or "reference".

    Raises:
        Error: see `RunnerProcess` and the backend there.
    """

    def __init__(
        self,
        source: TensorSource,
        params: BackendParams,
        runner: RunnerProcess | None = None,
        name: str = "ggml",
    ):
        super().__init__(source, params)
        self._freed: list[int] = []  # states that the process may still have
        self._owns_runner = runner is None
        self.runner = RunnerProcess(params.rpc) if runner is None else runner
        unknown = [endpoint for endpoint in params.rpc if endpoint not in self.runner.rpc]
        if unknown:
            raise ConfigError(
                f"worker {unknown[0]} is none of the runner's; start the runner with it, "
                "RunnerProcess(rpc=…)"
            )
        self.number = self.runner.new_id()
        try:
            self.flash_attention, self.cache_config = self._ask(
                "open", describe(source), replace(params, rpc=()), name
            )
        except BaseException:
            if self._owns_runner:
                self.runner.close()
            raise

    def _ask(self, kind: str, *args: Any, **options: Any) -> Any:
        return self.runner.request(kind, self.number, *args, **options)

    def _tell(self, kind: str, *args: Any) -> bool:
        """`_ask` for requests that an ended process needs no more; False if it is too busy.

        Closing must end even if an earlier request does not, such as one that was interrupted
        because a worker hangs.
        """
        if self.runner.usable:
            try:
                self._ask(kind, *args, timeout=_TIMEOUT)
            except NoAnswer:
                return False
            except Error:
                if self.runner.usable:
                    raise
        return True

    def batches_to_reserve(self, largest: int) -> list[int]:
        return self._ask("of_backend", "batches_to_reserve", largest)

    def keep_graphs(self, n: int) -> None:
        self._ask("of_backend", "keep_graphs", n)

    def check_files(self) -> None:
        """Does nothing: the process checks the files that it reads."""

    def check_open(self) -> None:
        super().check_open()
        self.runner.check()

    def _allocate_weights(self, graphs: tuple[Graph, ...]) -> None:
        packed = [pack_graph(graph, self.leaf) for graph in graphs]
        self.runner.occupy(self.number, self._ask("allocate", packed))

    def _read_weights(self, progress: Progress | None, cancel: Callable[[], bool] | None) -> None:
        self._ask(
            "load",
            events={
                "progress": progress or (lambda share: None),
                "cancel": cancel or (lambda: False),
            },
        )

    def _compile(self, graph: Graph, outputs: tuple[Node, ...]) -> ProcessExecutable:
        return ProcessExecutable(self, graph, outputs)

    def leaf(self, node: Node) -> Leaf:
        """The process's key for a weight or state.

        Raises:
            GraphError: it is another backend's, or was freed.
        """
        if isinstance(node.storage, Weight) and self.tensors.get(node.name) is node:
            return node.name
        if node.uid in self._states:
            return (node.uid, node.name)
        if isinstance(node.storage, State) and node.storage.backend is self:
            raise GraphError(f"{node.describe()} was freed with its context or never allocated")
        raise GraphError(f"{node.describe()} belongs to another backend")

    # states

    def _create_state(self, node: Node) -> None:
        assert isinstance(node.storage, State)
        self._ask(
            "create_state", node.uid, node.ne, node.dtype, node.storage.layer, node.storage.initial
        )
        super()._create_state(node)

    def _free_states(self, nodes: list[Node]) -> None:
        super()._free_states(nodes)
        self._freed += [node.uid for node in nodes]
        # A closing backend frees them itself.
        if not self.closed and self._tell("free_states", self._freed):
            self._freed = []

    def _allocate_state(self, node: Node) -> None:
        assert isinstance(node.storage, State)
        node.storage.handle = node.uid  # the memory itself is in the process

    def _write_state(self, node: Node, data: bytes) -> None:
        self._ask("write", node.uid, data)

    def _free_state(self, handle: int) -> None:
        """Nothing: `free_states` frees all in one request."""

    def _read_state(self, node: Node) -> np.ndarray:
        return self._ask("read", node.uid)

    def _read_rows(self, node: Node, rows: np.ndarray) -> np.ndarray:
        return self._ask("read_rows", node.uid, rows)

    def _write_rows(self, node: Node, rows: np.ndarray, data: np.ndarray) -> None:
        self._ask("write_rows", node.uid, rows, data)

    # memory

    def backend_memory(self) -> BackendMemory:
        self.check_open()
        return self._ask("of_backend", "backend_memory")

    def backend_devices(self) -> list[DeviceInfo]:
        self.check_open()
        return self._ask("of_backend", "backend_devices")

    # life

    @property
    def forked(self) -> bool:
        return self.runner.forked

    def close(self) -> None:
        self.turn.check()
        if self._owns_runner:
            self.runner.close()  # a computation under way fails, rather than keep this waiting
        super().close()

    def _release(self) -> None:
        if self._owns_runner:
            self.runner.close()
        else:
            self._tell("close")
            self.runner.drop(self.number)

    def __del__(self) -> None:
        # No request is possible here: this thread may be in the middle of one.
        if hasattr(self, "number"):
            self.runner.drop(self.number)


class ProcessExecutable(Executable):
    """A graph that is compiled in the process. A run is one request with the values of all inputs,
    answered with those of all outputs.

    Attributes:
        ended: the process has reported that the graph can run no more.
    """

    def __init__(self, backend: ProcessBackend, graph: Graph, outputs: tuple[Node, ...]):
        super().__init__(backend.turn)
        self.ended = False
        self._backend = backend
        self._runner = backend.runner
        self._inputs = list(graph.inputs)
        table = [*graph.inputs, *graph.schedule]
        self._places = {node.uid: i for i, node in enumerate(table)}
        self._outputs = [node.uid for node in outputs if node.uid in self._places]
        self._values: dict[int, np.ndarray] = {}
        operands = (x for node in graph.schedule for x in node.sources if x is not None)
        self.states = frozenset(x.uid for x in operands if isinstance(x.storage, State))
        self.number = self._runner.new_id()
        self._runner.watch(self.number, self)
        packed, places = pack_graph(graph, backend.leaf), [self._places[i] for i in self._outputs]
        self._runner.request("compile", self.number, backend.number, packed, places)

    @property
    def valid(self) -> bool:
        return not self.ended and not self._backend.closed and self._runner.usable

    def _check_valid(self) -> None:
        self._backend.check_open()
        super()._check_valid()

    def _run(self, step: Any, meanwhile: Callable[[], None] | None) -> None:
        values = [_values(node, step) for node in self._inputs]
        self._values = {}
        results = self._runner.request("run", self.number, values, meanwhile=meanwhile)
        self._values = dict(zip(self._outputs, results, strict=True))

    def _value(self, node: Node) -> np.ndarray:
        if (value := self._values.get(node.uid)) is not None:
            return value
        if (place := self._places.get(node.uid)) is None:
            return self._backend.read(node)
        return self._runner.request("value", self.number, place)

    def _close(self) -> None:
        if not self.ended:
            self.ended = True
            self._runner.drop(self.number)
        self._inputs = []
        self._values = {}

    def __del__(self) -> None:
        if hasattr(self, "number"):
            self._close()


def _values(node: Node, step: Any) -> np.ndarray:
    """An input's values in its dtype, to be sent."""
    if isinstance(node.storage, Feed):
        values = values_of(node, node.storage, step)
        return values if node.dtype.numpy is None else values.astype(node.dtype.numpy, copy=False)
    assert isinstance(node.storage, HostData)
    return node.storage.array
