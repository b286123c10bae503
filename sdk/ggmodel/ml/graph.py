"""The recorded graph: the ops of `forward`, before any backend has seen them.

A graph is recorded once and may be executed by any backend. It knows three things about each op:
its operands, its module of the model, and its line in the model's source.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import GraphError
from .storage import Feed, HostData

if TYPE_CHECKING:
    from .node import Node

# The first frame outside of these folders is the author's line. The layers that architectures
# share are read like an author's: no frame of theirs may be around it.
_SDK = Path(__file__).resolve().parent.parent
_MACHINERY = tuple(str(_SDK / part) + "/" for part in ("ml", "nn", "model", "kvcache", "runner"))
_SHARED = {str(_SDK / "nn" / name) for name in ("decoder.py", "sandwich.py")}
_machinery: dict[str, bool] = {}

_thread = threading.local()


class Site:
    """A source line of a model: file, line number, function name."""

    __slots__ = ("file", "function", "line")

    def __init__(self, file: str, line: int, function: str):
        self.file, self.line, self.function = file, line, function

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def call_site() -> Site | None:
    """The innermost frame that is not part of the SDK's machinery."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        inside = _machinery.get(file)
        if inside is None:
            path = str(Path(file).resolve())
            inside = _machinery[file] = path.startswith(_MACHINERY) and path not in _SHARED
        if not inside:
            return Site(file, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


class Graph:
    """The ops recorded by one context, and the order in which they are executed.

    Attributes:
        backend: the backend whose attention and cache settings apply while recording.
        schedule: the ops to execute, in order; grows by `forward`.
        inputs: host tensors and feeds that the schedule reads, in order of first use.
        scope: path of the module being traced ("blk.3.attn"), names the ops.
        calls: a list, if wanted, of each returned call of a module: `forward`, arguments, result.
        lock: held while the schedule grows or is compiled.
    """

    def __init__(self, backend: Any, max_nodes: int):
        self.backend = backend
        self.max_nodes = max_nodes
        self.schedule: list[Node] = []
        self.inputs: list[Node] = []
        self.scope = ""
        self.calls: list[tuple[Callable[..., Any], tuple, Any]] | None = None
        self.batch_size = 0  # a hint for backends that copy weights to a device; 0 is unknown
        self.closed = False
        self.lock = threading.RLock()
        self.recorded = 0
        self._known: set[int] = set()  # scheduled, or an input

    def forward(self, *roots: Node) -> None:
        """Schedules each root after everything it reads, in the order recorded.

        Roots that are already scheduled stay in place. The graph has no edges for writes into
        memory that other ops read: they happen in the order of these calls.
        """
        with self.lock:
            for root in roots:
                self._schedule(root)

    def _schedule(self, root: Node) -> None:
        pending: dict[int, Node] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            if node.uid in pending or node.uid in self._known:
                continue
            if node.op is None:
                if isinstance(node.storage, (HostData, Feed)):
                    self._known.add(node.uid)
                    self.inputs.append(node)
                continue
            pending[node.uid] = node
            stack.extend(s for s in node.sources if s is not None)
        for uid in sorted(pending):
            self._known.add(uid)
            self.schedule.append(pending[uid])

    def forget(self) -> None:
        """Drops what was recorded, once an executable needs no more of it."""
        self.schedule, self.inputs = [], []
        self._known.clear()

    @property
    def replayable(self) -> bool:
        """Whether all inputs are feeds, so that a compiled graph serves every step."""
        return all(isinstance(node.storage, Feed) for node in self.inputs)

    def admit(self) -> None:
        """Counts one more recorded op; raises `GraphError` when closed or past the node limit."""
        if self.closed:
            raise GraphError("this context is closed; make a new one with backend.new_context()")
        self.recorded += 1
        if self.recorded > self.max_nodes:
            raise GraphError(
                f"the graph has more than {self.max_nodes} ops; "
                "make its context with backend.new_context_size(n)"
            )


def current_graph() -> Graph | None:
    """The graph being traced in this thread."""
    return getattr(_thread, "graph", None)


@contextmanager
def tracing(graph: Graph) -> Iterator[None]:
    """Within the block, ops whose operands belong to no graph join this one."""
    outer = current_graph()
    _thread.graph = graph
    try:
        yield
    finally:
        _thread.graph = outer


def in_scope(name: str, call: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Calls with `name` appended to the traced graph's scope, and names the result after it."""
    graph = current_graph()
    if graph is None or not name:
        return call(*args, **kwargs)
    outer = graph.scope
    graph.scope = f"{outer}.{name}" if outer else name
    try:
        result = call(*args, **kwargs)
        adopt = getattr(result, "adopt_name", None)
        if adopt is not None:
            adopt(graph.scope)
        if graph.calls is not None:
            graph.calls.append((call, args, result))
        return result
    finally:
        graph.scope = outer
