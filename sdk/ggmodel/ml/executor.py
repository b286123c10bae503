"""`Executor`: what computes, and has the memory for it, which threads use in turns."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any

from ..closing import Closing
from ..errors import GraphError
from .executable import Executable
from .graph import Graph
from .node import Node
from .storage import State
from .turn import Turn


class Executor(Closing, ABC):
    """The part of a backend that gives weights and states their memory, and compiles graphs.

    Any thread may use it: whatever computes, or needs or frees its memory, waits for its turn.
    Functions that it calls meanwhile, such as feeds, may do none of this: they get a GraphError.

    Attributes:
        turn: the turn to use it.
        closed: whether `close` was called.
        block_count: the number of layers, by which memory is reported; a subclass sets it.
    """

    block_count: int

    def __init__(self) -> None:
        self.turn = Turn()
        self.closed = False
        self._executables: weakref.WeakSet[Executable] = weakref.WeakSet()
        self._states: dict[int, Node] = {}
        self._allocated = False

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that made the backend, and cannot use it."""
        return False

    def check_open(self) -> None:
        """Raises `GraphError` if this backend can compute no more."""
        if self.closed:
            raise GraphError("this backend is closed")

    def close(self) -> None:
        """Frees everything, after a computation under way; idempotent. A forked child leaves that
        to its parent.

        Raises:
            GraphError: called in a feed, or another function that a computation calls.
        """
        if self.closed or self.forked:
            return
        with self.turn.lock:
            self.turn.check()
            self._close()

    def _close(self) -> None:
        """`close`, in this thread's turn, or where nobody can use the backend any more."""
        if not self.closed:
            self.closed = True
            self._free()

    @abstractmethod
    def _free(self) -> None:
        """Frees everything, once."""

    def allocate(self, *graphs: Graph) -> None:
        """Places weights and states by the ops of the traced graphs, and allocates them; only the
        first call does.

        Raises:
            OutOfMemory: with the memory report.
        """
        self.check_open()
        for graph in graphs:
            _need_graph(graph)
        with self.turn.lock:
            self.check_open()  # it may have been closed while this thread waited
            if self._allocated:
                return
            self._allocate_weights(graphs)
            self._allocated = True
            for node in self._states.values():
                self._allocate_state(node)

    @abstractmethod
    def _allocate_weights(self, graphs: tuple[Graph, ...]) -> None:
        """The part of `allocate` that comes before the states."""

    def compile(self, graph: Graph, outputs: tuple[Node, ...]) -> Executable:
        """Makes the graph's schedule executable; `outputs` keep their values after a run.

        Raises:
            TensorError: the library refuses an op; names it, its operands and the model's line.
            OutOfMemory: the compute buffer does not fit.
        """
        self.check_open()
        _need_graph(graph)
        with self.turn.lock, graph.lock:
            self.turn.check()
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

    def create_state(self, node: Node) -> None:
        """Gives a state tensor its memory, now or, before `allocate`, with it."""
        self.check_open()
        with self.turn.lock:
            self.check_open()
            self._create_state(node)

    def _create_state(self, node: Node) -> None:
        self._states[node.uid] = node
        try:
            if self._allocated:
                self._allocate_state(node)
        except BaseException:  # whose report counts it; the next one does not
            del self._states[node.uid]
            raise

    def free_states(self, nodes: list[Node]) -> None:
        """Frees the memory of state tensors, and the graphs that work on them.

        Raises:
            GraphError: called in a feed, or another function that a computation calls.
        """
        if not nodes or self.forked:
            return
        with self.turn.lock:
            self.turn.check()
            self._free_states(nodes)

    def _free_states(self, nodes: list[Node]) -> None:
        freed = {node.uid for node in nodes}
        for executable in list(self._executables):
            if executable.states & freed:
                executable._close()
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


def _need_graph(graph: object) -> None:
    if not isinstance(graph, Graph):
        raise GraphError(f"{graph!r:.80} is no graph; a context's is `ctx.graph`")
