"""Compiled graphs: the turn in which each runs, and the checks of its indices.

Turns: one thread at a time computes on a backend, and nothing uses it from within.

Indices are checked before an op computes with them: ggml's kernels would end the process. They are
traced back to their origin. Values of inputs, weights and states are compared with the bound.
Computed indices must be in range for all operands: sorting, counting and clamping ensure that, and
sums of those.
"""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..errors import ComputeError, GraphError, Unsupported
from ..platforms.processes import after_fork
from .arguments import checked_methods
from .graph import Graph
from .node import Feed, Node, Weight, impossible
from .table import F32, I32, I64

T = TypeVar("T")


class Turn:
    """The turn to use a backend. Threads that want it wait; a thread that has it may take it again.

    Finalizers run in any thread, at any time: none may wait for a turn.

    Attributes:
        lock: held while a thread has the turn. `with turn.lock:` is safe from Ctrl-C, which a
            method of Python that acquires it would not be.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._running = 0  # the thread that runs a graph or loads weights
        _turns.add(self)

    def alone(self, work: Callable[..., T], *args: Any) -> T:
        """Calls `work`, which may call functions of users, such as feeds: they cannot do anything
        to the backend meanwhile that `check` stands before.

        Raises:
            GraphError: such a function asks for this.
        """
        with self.lock:
            if self._running:  # by this thread, which has the lock
                self.check()
            try:
                self._running = threading.get_ident()
                return work(*args)
            finally:
                self._running = 0

    def check(self) -> None:
        """Raises GraphError in a function that this thread calls while it computes or loads."""
        if self._running == threading.get_ident():
            raise GraphError(
                "a feed, or another function that a backend calls while it computes or loads, "
                "uses that very backend: compute what it needs before, and close things after"
            )

    def _renew(self) -> None:
        self.lock, self._running = threading.RLock(), 0


_turns: weakref.WeakSet[Turn] = weakref.WeakSet()


def _renew_all() -> None:
    """Runs in forks of this process: the threads that had a turn did not come along."""
    for turn in list(_turns):
        turn._renew()


after_fork(_renew_all)

# Ops that pass values on unchanged, so that their operands can be checked instead.
_MOVES = frozenset({"contiguous", "duplicate", "reshape", "repeat", "concat", "cast"})
# Ops that write into an operand's memory: the number of the operand that they write.
WRITES = {"copy": 0, "set_rows": 1, "set_inplace": 1}
_EXACT = 1 << 24  # below it float32 has every integer

Range = tuple[float, float]


@dataclass(frozen=True)
class IndexCheck:
    """The check of an op's indices against `bound`.

    Attributes:
        part: a leaf, or a view of one.
        values: memory of the leaf's values; None reads them from the backend each time.
    """

    op: Node
    part: Node
    values: np.ndarray | None
    bound: int

    def run(self) -> None:
        """Raises `ComputeError` if an index is out of range."""
        values = self.values
        if values is None:
            assert self.op.graph is not None
            values = _part(self.op.graph.backend.read(self.part.owner), self.part)
        if not values.size:
            return
        # A single index, as of a single token, needs no reductions of numpy.
        lo, hi = (values.item(),) * 2 if values.size == 1 else (values.min(), values.max())
        if not (lo > -1 and hi < self.bound):  # floats are truncated by the op; NaN is refused
            assert self.op.op is not None
            raise ComputeError(
                f"{self.op.op.name}: {self.part.owner.describe()} selects rows {lo} to {hi} of "
                f"{self.bound}\n  at {self.op.site}"
            )


def index_checks(graph: Graph, inputs: Mapping[Node, np.ndarray]) -> list[IndexCheck]:
    """The checks before each run of a graph.

    Trusted feeds need none (see `Feed`). Indices in weights are checked here, once.

    Args:
        inputs: the memory of the graph's inputs: arrays of the reversed shape.

    Raises:
        ComputeError: an index in a weight is out of range.
        TensorError: the range of computed indices is unknown.
    """
    checks: list[IndexCheck] = []
    origins: _Origins | None = None
    for node in graph.schedule:
        assert node.op is not None
        for i, ids in enumerate(node.sources):
            selects = node.op.operands[i].selects
            if selects is None or ids is None:
                continue
            origins = origins or _Origins(graph)
            table = node.sources[selects[0]]
            assert table is not None
            bound = table.ne[selects[1]]
            for part in origins.leaves(ids, node, bound):
                leaf = part.owner
                if leaf in inputs:
                    if not (isinstance(leaf.storage, Feed) and leaf.storage.trusted):
                        values = _part(inputs[leaf], part)
                        checks.append(IndexCheck(node, part, values, bound))
                elif isinstance(leaf.storage, Weight):
                    IndexCheck(node, part, None, bound).run()
                else:
                    checks.append(IndexCheck(node, part, None, bound))
    return checks


class _Origins:
    """The origins of the values in a graph."""

    def __init__(self, graph: Graph):
        self._written: dict[int, list[Node]] = {}  # sources of writes into a tensor, by its uid
        for node in graph.schedule:
            at = WRITES.get(node.op.name) if node.op is not None else None
            if at is not None:
                assert node.base is not None
                source = node.sources[at]
                assert source is not None
                self._written.setdefault(node.base.uid, []).append(source)

    def leaves(self, ids: Node, reader: Node, bound: int) -> Iterator[Node]:
        """The leaves, or views of leaves, whose values arrive in `ids`.

        Raises:
            TensorError: values of unknown range arrive there too.
        """
        visited: set[int] = set()
        pending = [ids]
        while pending:
            x = pending.pop()
            if x.uid in visited:
                continue
            visited.add(x.uid)
            owner = x.owner
            written = self._written.get(owner.uid, ())
            if owner.op is None and owner.dtype.numpy is not None:
                yield x
                pending += written
                moved = all(_keeps(w, owner, bound) for w in written)
            elif owner.op is not None and owner.op.name in (*_MOVES, "rows"):
                sources = _passed(owner)
                pending += (*sources, *written)
                moved = all(_keeps(s, owner, bound) for s in (*sources, *written))
            else:
                limits = self._range(x, set())
                moved = limits is not None and limits[0] > -1 and limits[1] < bound
            if not moved:
                raise impossible(
                    reader,
                    f"the indices come from {owner.describe()}, which may hold others than those "
                    f"of {bound} rows; end their computation with clamp(0, {bound - 1}).cast(I32)",
                )

    def _range(self, x: Node, above: set[int]) -> Range | None:
        """The range of the computed values of x; None if unknown."""
        owner = x.owner
        if owner.uid in above or owner.dtype not in (F32, I32, I64):
            return None
        above = above | {owner.uid}
        own = self._range_of_op(owner, above)
        ranges = [own, *(self._range(w, above) for w in self._written.get(owner.uid, ()))]
        bounded = [r for r in ranges if r is not None]
        if len(bounded) < len(ranges):
            return None
        lo, hi = min(r[0] for r in bounded), max(r[1] for r in bounded)
        return (lo, hi) if lo > -_EXACT and hi < _EXACT else None

    def _range_of_op(self, x: Node, above: set[int]) -> Range | None:
        if x.op is None:
            return None
        name, attrs = x.op.name, x.attrs
        sources = _passed(x)
        if name in ("argsort", "argmax"):
            return 0, max(sources[0].ne[0] - 1, 0)
        if name == "arange":
            return _counted(attrs["start"], attrs["step"], x.ne[0])
        if name == "fill":
            return _single(attrs["value"]), _single(attrs["value"])
        if name == "clamp":
            return _single(attrs["lo"]), _single(attrs["hi"])
        if name not in _MOVES and name not in ("add", "cumsum", "rows"):
            return None
        ranges = [self._range(s, above) for s in sources]
        bounded = [r for r in ranges if r is not None]
        if len(bounded) < len(ranges):
            return None
        if name == "add":
            return sum(r[0] for r in bounded), sum(r[1] for r in bounded)
        lo, hi = min(r[0] for r in bounded), max(r[1] for r in bounded)
        n = x.ne[0] if name == "cumsum" else 1
        return min(lo, n * lo), max(hi, n * hi)


def _passed(x: Node) -> list[Node]:
    """The operands of an op whose values may arrive in its result."""
    assert x.op is not None
    return [s for s in (x.sources[:1] if x.op.name == "rows" else x.sources) if s is not None]


def _keeps(source: Node, target: Node, bound: int) -> bool:
    """Whether indices below `bound` survive the conversion from one dtype to another."""
    return source.dtype == target.dtype or (
        target.dtype in (F32, I32, I64) and (source.dtype != I32 or bound <= _EXACT)
    )


def _single(value: float) -> float:
    """The float32 that the op computes with."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _counted(start: float, step: float, count: int) -> Range:
    ends = start, start + (count - 1) * step
    exact = float(start).is_integer() and float(step).is_integer()
    slack = 0.0 if exact else 1e-6 * max(map(math.fabs, (*ends, step)))
    return min(ends) - slack, max(ends) + slack


def _part(leaf: np.ndarray, part: Node) -> np.ndarray:
    """The values of the node `part`, a leaf or a view of one, in the leaf's memory."""
    if part.base is None or not part.n_elements:
        return leaf if part.n_elements else leaf[:0]
    memory = leaf.reshape(-1).view(np.uint8)
    return np.ndarray(part.ne[::-1], leaf.dtype, memory, part.offset, part.nb[::-1])


def fewest_rows(graph: Graph, leaf: Node) -> int | None:
    """The smallest number of rows that a leaf's values select from; None if they are no indices."""
    counts = [
        table.ne[selects[1]]
        for node in graph.schedule
        for i, ids in enumerate(node.sources)
        if node.op is not None
        and ids is not None
        and ids.owner is leaf
        and (selects := node.op.operands[i].selects) is not None
        and (table := node.sources[selects[0]]) is not None
    ]
    return min(counts, default=None)


_CALLING = ("run", "run_each", "run_edited", "run_apart")


@checked_methods(*_CALLING)
class Executable(ABC):
    """A compiled graph, which runs any number of times. Any thread may use it: each call waits for
    its turn. `with executable.turn.lock:` keeps the turn from a run until its values are read.

    Args:
        turn: the backend's.

    Attributes:
        turn: the same.
        states: uids of the state tensors it works on; it is closed before they are freed.
    """

    states: Set[int] = frozenset()

    def __init_subclass__(cls) -> None:
        checked_methods(*_CALLING)(cls)

    def __init__(self, turn: Turn):
        self.turn = turn

    @property
    @abstractmethod
    def valid(self) -> bool:
        """False once its memory is gone: compile the graph again."""

    def _check_valid(self) -> None:
        """Raises GraphError if it can run no more, and its values are gone."""
        if not self.valid:
            raise GraphError("this graph's memory is gone, or it is closed; compile it again")

    def _alone(self, work: Callable[..., T], *args: Any) -> T:
        """`Turn.alone` of a valid graph."""
        with self.turn.lock:
            self._check_valid()
            return self.turn.alone(work, *args)

    def run(self, step: Any = None, meanwhile: Callable[[], None] | None = None) -> None:
        """Fills the feeds from `step`, copies host inputs in and computes.

        Args:
            meanwhile: called while another processor computes, if any; it may prepare the next
                step but use no backend.

        Raises:
            ComputeError: an index out of range, or the backend failed.
            FormatError: a file of the weights has changed, so that the results may be wrong.
            GraphError: its memory is gone, or a feed asks for it.
        """
        self._alone(self._run, step, meanwhile)

    @abstractmethod
    def _run(self, step: Any, meanwhile: Callable[[], None] | None) -> None:
        """`run` of a valid graph, in this thread's turn."""

    def run_each(self, step: Any, visit: Callable[[Node, np.ndarray], None]) -> None:
        """`run`, op by op, with a look at intermediate results.

        Args:
            visit: called with each result and its raw value, which the next op may overwrite.
                Results without elements, or in blocks with gaps, are left out.

        Raises:
            Unsupported: the graph runs in another process.
        """
        self._alone(self._run_each, step, visit)

    def _run_each(self, step: Any, visit: Callable[[Node, np.ndarray], None]) -> None:
        """`run_each` of a valid graph, in this thread's turn."""
        raise Unsupported("intermediate results of another process cannot be seen: leave rpc out")

    def run_edited(self, step: Any, edits: Mapping[Node, Callable[[np.ndarray], object]]) -> None:
        """`run`, with some results changed before other ops read them.

        Args:
            edits: outputs, and functions that write into their raw values.

        Raises:
            Unsupported: the graph runs in another process.
        """
        self._alone(self._run_edited, step, edits)

    def _run_edited(self, step: Any, edits: Mapping[Node, Callable[[np.ndarray], object]]) -> None:
        """`run_edited` of a valid graph, in this thread's turn."""
        raise Unsupported(
            "a function of Python cannot change results of another process: write it as tensors, "
            "ggmodel.in_graph(…), or leave rpc out"
        )

    def keep_only(self, outputs: tuple[Node, ...]) -> None:
        """Allows to forget all but what `run` and the values of these outputs need. `run_each` no
        longer works; the outputs may forget how they are computed."""
        del outputs

    def value(self, node: Node) -> np.ndarray:
        """The raw value of an output; may be a view that the next run overwrites."""
        with self.turn.lock:
            self._check_valid()
            return self._value(node)

    @abstractmethod
    def _value(self, node: Node) -> np.ndarray:
        """`value` of a valid graph, in this thread's turn."""

    def close(self) -> None:
        """Frees the graph's memory, after a run under way; idempotent.

        Raises:
            GraphError: called in a feed, or another function that a run calls.
        """
        with self.turn.lock:
            self.turn.check()
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """`close`, in this thread's turn, or where nobody can use the graph any more."""


def run_for(executable: Executable, output: Node, step: Any, meanwhile: Any) -> np.ndarray:
    """The value of an output after a run, for callers who have asked `valid` in this turn: neither
    it nor the arguments are checked. See `Executable.run` and `Executable.value`."""
    with executable.turn.lock:
        executable.turn.alone(executable._run, step, meanwhile)
        return executable._value(output)
