"""The CPU's scratch memory, in which ops convert their operands.

ggml allocates it when a graph runs, and anew for each graph that needs more than those before; the
pieces that were too small would stay in the process's heap. So it is taken when the largest graphs
are laid out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from ...native import ffi, lib, proc
from ...shortage import need_room
from .memory import Arena, Device


class Scratch:
    """Scratch memory of the CPU's backend, as large as the graphs so far need it.

    Args:
        n_threads: the most that compute.

    Attributes:
        size: bytes.
    """

    def __init__(self, cpu: Device, n_threads: int):
        self._backend, self._taken = cpu.backend, 0
        self._registry = lib.ggml_backend_dev_backend_reg(cpu.handle)
        self.size = 0
        proc(self._registry, "ggml_backend_set_n_threads")(cpu.backend, n_threads)

    def forget_failures(self) -> None:
        """Has `size` count the memory alone that was taken."""
        self.size = self._taken

    def measure(self, ops: Sequence[Any]) -> None:
        """Counts the memory for `ggml_tensor`s that the CPU computes in one graph."""
        with self._graph(ops) as graph:
            self._measure(graph)

    def take(self, ops: Sequence[Any]) -> None:
        """`measure`, and takes the memory."""
        with self._graph(ops) as graph:
            self._measure(graph)
            if self.size > self._taken:
                need_room(self.size, "the CPU's scratch memory")
                self._compute_first(graph)
                self._taken = self.size

    def _compute_first(self, graph: Any) -> None:
        """Has ggml take the memory for a graph, and stop after the first op: the others have no
        inputs yet."""
        interrupts: list[BaseException] = []

        def keep(kind: Any, error: BaseException, trace: Any) -> None:
            interrupts.append(error)  # Ctrl-C, which must not pass through C

        stop = ffi.callback("bool(void *)", lambda _: True, error=True, onerror=keep)
        ask = proc(self._registry, "ggml_backend_set_abort_callback")
        try:
            ask(self._backend, stop, ffi.NULL)
            lib.ggml_backend_graph_compute(self._backend, graph)
        finally:
            ask(self._backend, ffi.NULL, ffi.NULL)
        if interrupts:
            raise interrupts[0]

    @contextmanager
    def _graph(self, ops: Sequence[Any]) -> Iterator[Any]:
        """A graph of these ops behind one of its own, which may be computed."""
        number = ffi.new("float[]", 1)
        with closing(Arena(2, len(ops) + 1)) as arena:
            graph = lib.ggml_new_graph_custom(arena.ctx, len(ops) + 1, False)
            leaf = lib.ggml_new_tensor_1d(arena.ctx, lib.GGML_TYPE_F32, 1)
            first = lib.ggml_scale_inplace(arena.ctx, leaf, 1.0)
            leaf.data = first.data = ffi.cast("void *", number)
            lib.ggml_build_forward_expand(graph, first)  # marks it to be computed
            for op in ops:
                lib.ggml_graph_add_node(graph, op)
            yield graph

    def _measure(self, graph: Any) -> None:
        plan = lib.ggml_backend_graph_plan_create(self._backend, graph)
        # It begins with its `ggml_cplan` (ggml-cpu.cpp, `ggml_backend_plan_cpu`).
        self.size = max(self.size, ffi.cast("struct ggml_cplan *", plan).work_size)
        lib.ggml_backend_graph_plan_free(self._backend, plan)
