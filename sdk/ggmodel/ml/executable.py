"""Compiled graphs, whatever computes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from .arguments import checked_methods
from .node import Node
from .turn import Turn

if TYPE_CHECKING:
    import numpy as np


_CALLING = ("run", "run_each", "run_apart")


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
        self.turn.alone(self._run, step, meanwhile)

    @abstractmethod
    def _run(self, step: Any, meanwhile: Callable[[], None] | None) -> None:
        """`run`, in this thread's turn."""

    def run_each(self, step: Any, seen: Callable[[Node, np.ndarray], None]) -> None:
        """`run`, op by op, with a look at intermediate results.

        Args:
            seen: called with each result and its raw value, which the next op may overwrite.
                Results without elements, or in blocks with gaps, are left out.

        Raises:
            Unsupported: the graph runs in another process.
        """
        self.turn.alone(self._run_each, step, seen)

    def _run_each(self, step: Any, seen: Callable[[Node, np.ndarray], None]) -> None:
        """`run_each`, in this thread's turn."""
        raise Unsupported("intermediate results of another process cannot be seen: leave rpc out")

    def keep_only(self, outputs: tuple[Node, ...]) -> None:
        """Allows to forget all but what `run` and the values of these outputs need. `run_each` no
        longer works; the outputs may forget how they are computed."""
        del outputs

    def value(self, node: Node) -> np.ndarray:
        """The raw value of an output; may be a view that the next run overwrites."""
        with self.turn.lock:
            return self._value(node)

    @abstractmethod
    def _value(self, node: Node) -> np.ndarray:
        """`value`, in this thread's turn."""

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
