"""A recorded graph, interpreted op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ComputeError, GraphError, OutOfMemory
from ..executable import Executable
from ..graph import Graph
from ..indices import index_checks
from ..node import Node, impossible
from ..storage import State, Weight, fill_of, write_inputs
from .elements import Elements, can_decode, can_encode
from .evaluators import BYTEWISE, EVALUATORS

if TYPE_CHECKING:
    from .reference_backend import ReferenceBackend


class ReferenceExecutable(Executable):
    """The schedule of a graph at the time of compilation.

    Inputs have memory of their own, which a run fills. Results have memory from the op that makes
    them to their last reader, outputs until the next run.

    Attributes:
        size: the most bytes of inputs and results at one time.
    """

    def __init__(self, backend: ReferenceBackend, graph: Graph, outputs: tuple[Node, ...]):
        super().__init__(backend.turn)
        self._backend = backend
        self._schedule = tuple(graph.schedule)
        for node in self._schedule:
            _check_formats(node)
        self._dying = _last_uses(self._schedule, {n.owner.uid for n in outputs})
        self.size = sum(n.nbytes for n in graph.inputs) + self._peak()
        try:
            self._memory = {n.uid: np.zeros(n.nbytes, np.uint8) for n in graph.inputs}
        except (MemoryError, ValueError) as error:
            memory = backend.backend_memory()
            memory.cpu.graph = max(memory.cpu.graph, self.size)
            reason = f"the graph's inputs do not fit in memory: {error}"
            raise OutOfMemory(reason, memory) from None
        self._fills = [fill_of(n, self._whole(n)) for n in graph.inputs]
        self._checks = index_checks(graph, {node: target for _, target, node in self._fills})
        self._closed = False

    def _whole(self, node: Node) -> np.ndarray:
        """The memory of an input in the form that `Feed` and `HostData` fill."""
        memory = self._memory[node.uid]
        return memory if node.dtype.numpy is None else Elements(memory, node).raw

    def _peak(self) -> int:
        sizes = {n.uid: n.nbytes for n in self._schedule if n.base is None}
        alive = peak = 0
        for node, dying in zip(self._schedule, self._dying, strict=True):
            alive += sizes.get(node.uid, 0)
            peak = max(peak, alive)
            alive -= sum(sizes[uid] for uid in dying)
        return peak

    @property
    def valid(self) -> bool:
        return not self._closed and not self._backend.closed

    def _run(self, step: Any, meanwhile: Callable[[], None] | None) -> None:
        self._run_each(step, lambda node, value: None)

    def _run_each(self, step: Any, seen: Callable[[Node, np.ndarray], None]) -> None:
        self._check_valid()
        write_inputs(self._fills, step)
        for check in self._checks:
            check.run()
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are legal values
                for node, dying in zip(self._schedule, self._dying, strict=True):
                    self._evaluate(node)
                    if node.n_elements:
                        seen(node, self._value(node))
                    for uid in dying:
                        del self._memory[uid]
        finally:
            self._backend.check_files()

    def _evaluate(self, node: Node) -> None:
        assert node.op is not None
        try:
            if node.base is None:
                self._memory[node.uid] = np.empty(node.nbytes, np.uint8)
            if node.n_elements:
                operands = tuple(None if x is None else self._elements(x) for x in node.sources)
                EVALUATORS[node.op.name](self._elements(node), operands, node.attrs)
        except IndexError as error:  # computed indices; those of inputs were checked before
            raise ComputeError(f"{node.op.name}: {error}\n  at {node.site}") from None
        except MemoryError as error:
            reason = f"{node.op.name} into {node.describe()}: {error}"
            raise OutOfMemory(reason, self._backend.backend_memory()) from None

    def _elements(self, node: Node) -> Elements:
        if isinstance(node.storage, Weight):
            return self._backend.weight(node)
        owner = node.owner
        if isinstance(owner.storage, State):
            memory = owner.storage.handle
            if memory is None:
                raise GraphError(
                    f"{owner.describe()} was freed with its context or never allocated"
                )
        elif isinstance(owner.storage, Weight):
            memory = self._backend.bytes_of(owner)
        else:
            memory = self._memory.get(owner.uid)
            if memory is None:
                raise GraphError(f"{node.describe()} has no value; name it as an output")
        return Elements(memory, node)

    def _value(self, node: Node) -> np.ndarray:
        self._check_valid()
        raw = self._elements(node).raw
        return raw if node.dtype.numpy is not None else raw.reshape(-1)

    def _check_valid(self) -> None:
        if not self.valid:
            raise GraphError("this graph or its backend is closed; compile it again")

    def _close(self) -> None:
        self._closed = True
        self._memory.clear()
        self._fills = []
        self._checks = []


def _check_formats(node: Node) -> None:
    """Raises `TensorError` for an op on a block format without a decoder, or into one without an
    encoder."""
    assert node.op is not None
    if node.op.name in BYTEWISE:
        return
    writes_blocks = node.dtype.numpy is None and not can_encode(node.dtype)
    unread = [x for x in node.sources if x is not None and not can_decode(x.dtype)]
    if writes_blocks or unread:
        dtype = node.dtype if writes_blocks else unread[0].dtype
        reason = f"the reference backend cannot {'write' if writes_blocks else 'read'} {dtype.name}"
        raise impossible(node, reason)


def _last_uses(schedule: tuple[Node, ...], kept: set[int]) -> list[list[int]]:
    """For each op the results that it uses last, by uid."""
    last: dict[int, int] = {}
    for i, node in enumerate(schedule):
        for x in (node, *node.sources):
            owner = None if x is None else x.owner
            if owner is not None and owner.op is not None and owner.uid not in kept:
                last[owner.uid] = i
    dying: list[list[int]] = [[] for _ in schedule]
    for uid, i in last.items():
        dying[i].append(uid)
    return dying
