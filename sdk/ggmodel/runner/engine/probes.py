"""Probes: captures and patches of modules of the model, by request.

They act while a graph is recorded: a captured result is one more output of the graph, a patched one
is replaced for those that read it. Steps without probes have the graphs that they always had.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ComputeError, ConfigError, Error, TensorError
from ...ml import Context, DType, Tensor
from ...ml.tensor import as_numbers
from ...model import Step

if TYPE_CHECKING:
    from ...ml.executable import Executable
    from ...ml.node import Node


class InGraph:
    """A patch, or what is captured of a module, that is an expression of tensors: it becomes part
    of the graph, on any device.

    Args:
        function: (x F32 [width, rows], a tensor for each array) → F32 of x's shape, or of any width
            with as many rows if it is captured. It is called when a graph is recorded, not at each
            step: all else that it reads is fixed from then on.
        arrays: numbers that it computes with, such as a direction float32 [width].
    """

    def __init__(self, function: Callable[..., Tensor], *arrays: Any):
        if not callable(function):
            raise ConfigError(f"in_graph takes a function of a tensor, not {function!r:.80}")
        self.function = function
        self.arrays = tuple(map(_finite, arrays))


def _finite(array: Any) -> np.ndarray:
    """A copy of numbers, float32, that nobody can change."""
    numbers = as_numbers(array)
    if numbers is None:
        raise ConfigError(f"in_graph computes with finite numbers, not {array!r:.80}")
    numbers = numbers.copy()
    numbers.flags.writeable = False
    return numbers


in_graph = InGraph

Patch = Callable[[np.ndarray], Any] | InGraph | np.ndarray
"""A change of a module's result: a function of its rows float32 [rows, width], an expression of
tensors, or numbers float32 [width] that are added to each row."""


_Edit = Callable[[np.ndarray], None]


class Captured(Mapping[str, np.ndarray]):
    """The results of modules for one request: name → float32 [tokens, width], by position. A module
    that is computed for the tokens with logits alone, such as the head, has rows for these; one of
    an encoder has those of all items of the prompt, one behind another.

    Attributes:
        most: bytes that they may take.
    """

    most = math.inf

    def __init__(self) -> None:
        self._rows: dict[str, np.ndarray] = {}
        self._places: dict[str, np.ndarray] = {}
        self._length: int | None = None
        self._of_items: set[str] = set()  # names whose rows have no positions

    def append(self, name: str, values: np.ndarray) -> None:
        """Keeps rows of an item, float32 [n, width], behind those of the items before it."""
        self._of_items.add(name)
        kept = int(self._places[name].sum()) if name in self._places else 0
        self.put(name, values, np.arange(kept, kept + len(values)))

    def put(self, name: str, values: np.ndarray, positions: np.ndarray) -> None:
        """Keeps rows, float32 [n, width], of positions int32 [n]; later ones of the same positions
        replace them."""
        rows, places = self._rows.get(name), self._places.get(name)
        length = int(positions.max()) + 1
        if rows is None or places is None or len(rows) < length:
            grown = np.zeros((max(length, 0 if rows is None else 2 * len(rows)), values.shape[1]))
            grown, filled = grown.astype(np.float32), np.zeros(len(grown), bool)
            if rows is not None and places is not None:
                grown[: len(rows)], filled[: len(rows)] = rows, places
            self._rows[name], self._places[name] = rows, places = grown, filled
            size = sum(each.nbytes for each in self._rows.values())
            if size > self.most:
                raise ComputeError(
                    f"what is captured takes over {int(self.most):,} bytes; name fewer modules, or "
                    "ask for a shorter answer"
                )
        rows[positions], places[positions] = values, True

    def cut(self, length: int) -> None:
        """Leaves out positions from `length` on, of draft tokens that were rejected."""
        self._length = length

    def __getitem__(self, name: str) -> np.ndarray:
        length = None if name in self._of_items else self._length
        return self._rows[name][:length][self._places[name][:length]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Probe:
    """Captures and patches of one request.

    Args:
        modules: id of a module → its name, of all that are captured or patched.
        captures: names of those that are captured → None for their rows, or an expression of these.
        patches: name → its patches, in the order in which they apply.
        capturers: name → the blocks and options that capture it.
        named: those that must be computed; others fitted a pattern.

    Attributes:
        captured: the results; empty where nothing is captured.
        elsewhere: name → how often it is called outside of the steps: by encoders of the prompt's
            items, or behind pooled rows.
    """

    def __init__(
        self,
        modules: Mapping[int, str],
        captures: Mapping[str, InGraph | None] | None = None,
        patches: Mapping[str, tuple[Patch, ...]] | None = None,
        capturers: Mapping[str, frozenset[object]] | None = None,
        named: frozenset[str] = frozenset(),
    ):
        self.modules, self.captures, self.patches = modules, captures or {}, patches or {}
        self._capturers, self._named = capturers or {}, named
        self.captured, self.elsewhere = Captured(), dict[str, int]()

    @cached_property
    def key(self) -> Hashable:
        """Probes of an equal key have the same graphs: numbers and functions of Python are
        given to a graph when it runs."""
        kinds = {
            name: tuple(one if isinstance(one, InGraph) else type(one) is np.ndarray for one in all)
            for name, all in self.patches.items()
        }
        kinds_of = tuple(sorted(kinds.items(), key=lambda item: item[0]))
        captures = frozenset(self.captures.items())
        return captures, kinds_of, frozenset(self.elsewhere), self._named

    def missing(self, calls: Container[str]) -> list[str]:
        """The names of modules that were not called, though they were named or all fitted."""
        names = self.modules.values()
        absent = [n for n in names if n not in calls and n not in self.elsewhere]
        return absent if len(absent) == len(names) else [n for n in absent if n in self._named]

    @cached_property
    def variant(self) -> Hashable:
        """Sequences of equal variants hold the same states for the same tokens. None where nothing
        is patched; functions of Python may give something else each time."""
        parts: list[Hashable] = []
        for name in sorted(self.patches):
            for patch in self.patches[name]:
                if isinstance(patch, np.ndarray):
                    parts.append((name, hashlib.blake2b(patch.tobytes()).digest()))
                else:
                    parts.append((name, patch if isinstance(patch, InGraph) else object()))
        return tuple(parts) or None

    def has_been(self, other: Probe, name: str) -> bool:
        """Whether a module that was called for another probe was patched as by this one, and all
        that capture it by this one have its rows."""
        ours, theirs = ([*map(id, each.patches.get(name, ()))] for each in (self, other))
        capturers = (each._capturers.get(name, frozenset()) for each in (self, other))
        return ours == theirs and frozenset.issubset(*capturers)

    @property
    def shareable(self) -> bool:
        """Whether one can be for several requests: nothing is captured, and no patch can look at
        more than a row."""
        patches = (patch for each in self.patches.values() for patch in each)
        return not self.captures and all(isinstance(patch, np.ndarray) for patch in patches)

    def within(self, field: str) -> list[str]:
        """The names of that field of the model, and of modules in it."""
        return [one for one in self.modules.values() if f"{one}.".startswith(f"{field}.")]

    def numbers(self, name: str, index: int) -> np.ndarray:
        """The numbers of a patch that is an array."""
        patch = self.patches[name][index]
        assert isinstance(patch, np.ndarray)
        return patch

    def apply(self, name: str, index: int, rows: np.ndarray) -> np.ndarray:
        """Rows float32 [n, width], changed by a patch that is a function of Python.

        Raises:
            ComputeError: the function raises, or returns another shape or no numbers.
        """
        patch: Any = self.patches[name][index]
        with _raising(f"the patch of {name}"):
            changed = as_numbers(patch(rows.copy()), finite=False)
        if changed is None:
            raise ComputeError(f"the patch of {name} returned no numbers, or NaN or infinite ones")
        if changed.shape != rows.shape:
            raise ComputeError(
                f"the patch of {name} returned {list(changed.shape)}; it must return the "
                f"shape that it is given, {list(rows.shape)}"
            )
        return changed


@contextmanager
def _raising(what: str) -> Iterator[None]:
    """Says what raised; its errors end the request that has it."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        reason = f"{what} raised {type(error).__name__}: {error}"
        raise ComputeError(reason) from error


@dataclass(frozen=True, eq=False)
class Probed:
    """The part of a step that a probe is for.

    Attributes:
        rows: int32 [n], the inputs of the step. outputs: int32 [m], places in the step's outputs.
    """

    probe: Probe
    rows: np.ndarray
    outputs: np.ndarray

    @property
    def key(self) -> Hashable:
        """Graphs depend on these."""
        return self.probe.key, len(self.rows), len(self.outputs)

    def of(self, outputs: bool) -> np.ndarray:
        """The rows of a module's result: one for each input, or for each output."""
        return self.outputs if outputs else self.rows


@dataclass(frozen=True, eq=False)
class _Result:
    """A module's result in a graph: of all inputs of a step, or of its outputs alone; of its
    first call, or a later one. Or an expression of the rows of the probe at `place`."""

    name: str
    node: Tensor
    outputs: bool
    call: int = 1
    expression: InGraph | None = None
    place: int | None = None

    def label(self, before: int = 0) -> str:
        """Its name among what is captured, after so many calls elsewhere."""
        call = self.call + before
        return self.name if call == 1 else f"{self.name}#{call}"


class Tap:
    """Records the probes of a step into a graph, which then runs for all steps with equal ones.

    Args:
        step: which the graph is recorded for.
        partial: the graph is of a part of the model, and does not call all modules.

    Attributes:
        calls: how often each module that is captured or patched was called.
    """

    def __init__(self, ctx: Context, step: Step, partial: bool = False):
        self._ctx, self._step, self._partial = ctx, step, partial
        self._sizes = len(step.tokens), len(step.outputs)
        self._modules: dict[int, str] = {}
        for one in step.probes:
            self._modules |= one.probe.modules
        self.calls: dict[str, int] = {}
        self._captured: list[_Result] = []
        self._edits: list[tuple[_Result, int, int]] = []  # result, place of the probe, patch

    def __call__(self, call: Callable[..., Any], result: Any) -> Any:
        """The result of a module's `forward`, as the caller is to have it."""
        name = self._modules.get(id(getattr(call, "__self__", None)))
        several = isinstance(result, (tuple, list)) and bool(result)
        x = result[0] if several else result
        if name is None or not isinstance(x, Tensor):
            return result
        self.calls[name] = call_number = self.calls.get(name, 0) + 1
        outputs = self._counts_outputs(name, x)
        if outputs is None:
            return result
        for place, one in enumerate(self._step.probes):
            for index, patch in enumerate(one.probe.patches.get(name, ())):
                x = self._patched(_Result(name, x, outputs), place, index, patch)
        captured = {i: one.probe.captures.get(name, ...) for i, one in enumerate(self._step.probes)}
        if None in captured.values():
            self._captured.append(_Result(name, _copied(x), outputs, call_number))
        for place, expression in captured.items():
            count = len(self._step.probes[place].of(outputs))
            if isinstance(expression, InGraph) and count:
                y = self._expressed(x, name, place, outputs, expression)
                kept = _Result(name, y, outputs, call_number, expression, place)
                self._captured.append(kept)
        return type(result)((x, *result[1:])) if several else x

    def _counts_outputs(self, name: str, x: Tensor) -> bool | None:
        """Whether x has a row for each output, rather than for each input; None in a step without
        outputs, for what is not computed then."""
        (inputs, outputs), rows = self._sizes, _count(x)
        if rows == inputs or inputs == 1:
            return False
        if rows == outputs:
            return True
        if not outputs:
            return None
        raise TensorError(
            f"{name}: its result {x.describe()} has no row for each of {inputs} tokens, and can be "
            "neither captured nor patched; take the module around it"
        )

    def _patched(self, result: _Result, place: int, index: int, patch: Patch) -> Tensor:
        x, name, one = result.node, result.name, self._step.probes[place]
        if not isinstance(patch, (InGraph, np.ndarray)):
            y = x.cast(DType.F32).contiguous().duplicate()
            self._edits.append((_Result(name, y, result.outputs), place, index))
            return y
        count, total = len(one.of(result.outputs)), self._sizes[result.outputs]
        if not count:
            return x
        if count == total:
            return self._changed(x, name, place, index, patch)
        flat, at, rows = self._rows(x, place, result.outputs)
        changed = self._changed(rows, name, place, index, patch).contiguous(flat.dim(0), count)
        return flat.duplicate().set_rows(changed, at).reshape(*x.shape)

    def _rows(self, x: Tensor, place: int, outputs: bool) -> tuple[Tensor, Tensor, Tensor]:
        """All rows of a result, [width, n], the numbers I32 of a probe's, and these rows."""
        total, count = self._sizes[outputs], len(self._step.probes[place].of(outputs))
        at = self._ctx.feed(
            lambda step: step.probes[place].of(outputs), DType.I32, count, trusted=True
        )
        flat = x.contiguous(x.n_elements // total, total)
        return flat, at, flat.rows(at).reshape(*x.shape[:-1], count)

    def _expressed(
        self, x: Tensor, name: str, place: int, outputs: bool, expression: InGraph
    ) -> Tensor:
        """An expression of the rows of a probe, F32 [any width, rows]."""
        if len(self._step.probes[place].of(outputs)) < self._sizes[outputs]:
            *_, x = self._rows(x, place, outputs)
        what, rows = f"what is captured of {name}", _count(x)
        wanted = f"be F32 [any width, {rows}]"
        return _copied(self._called(expression, x, what, wanted, lambda y: _count(y) == rows))

    def _called(
        self,
        expression: InGraph,
        x: Tensor,
        what: str,
        wanted: str,
        fits: Callable[[Tensor], bool],
    ) -> Tensor:
        """The value F32 of an expression; another one is refused by what it must be."""
        constants = [self._ctx.constant(array, DType.F32) for array in expression.arrays]
        with _raising(what):
            y: Any = expression.function(x, *constants)
        if not isinstance(y, Tensor) or y.dtype is not DType.F32 or not fits(y):
            made = y.describe() if isinstance(y, Tensor) else type(y).__name__
            raise ConfigError(f"{what} must {wanted}, not {made}")
        return y

    def _changed(self, x: Tensor, name: str, place: int, index: int, patch: Patch) -> Tensor:
        if isinstance(patch, np.ndarray):
            if len(patch) != x.dim(0):
                raise ConfigError(
                    f"{name} has rows of {x.dim(0)} numbers; {len(patch)} were given to add"
                )
            return x + self._added(x.dim(0), name, place, index)
        assert isinstance(patch, InGraph)
        what, wanted = f"the patch of {name}", f"return F32 {list(x.shape)}"
        return self._called(patch, x, what, wanted, lambda y: y.shape == x.shape)

    def _added(self, width: int, name: str, place: int, index: int) -> Tensor:
        """The numbers of a patch that is an array, F32 [width]."""
        return self._ctx.feed(
            lambda step: step.probes[place].probe.numbers(name, index), DType.F32, width
        )

    def finish(self) -> tuple[Tensor, ...]:
        """Schedules what is captured, once all else is.

        Returns:
            The results that the graph has to keep.

        Raises:
            ConfigError: a module was not called.
        """
        missing = [name for one in self._step.probes for name in one.probe.missing(self.calls)]
        if missing and self._sizes[1] and not self._partial:
            raise ConfigError(
                f"{min(missing)} is not computed by itself for the tokens of a text: it belongs to "
                "an encoder that encodes nothing for this request, stands behind pooled rows, or "
                "the module around it uses its tensors alone"
            )
        for result in self._captured:
            self._ctx.forward(result.node)
        scheduled = {node.uid for node in self._ctx.graph.schedule}
        self._edits = [edit for edit in self._edits if edit[0].node.uid in scheduled]
        return tuple(r.node for r in (*self._captured, *(edit[0] for edit in self._edits)))

    def _compute(self, executable: Executable, step: Any) -> None:
        edits: dict[Node, _Edit] = {r.node: self._edit(step, r, *at) for r, *at in self._edits}
        if edits:
            executable.run_edited(step, edits)
        else:
            executable.run(step)

    def _edit(self, step: Any, result: _Result, place: int, index: int) -> _Edit:
        return _edit(step.probes[place], result, index, self._sizes[result.outputs])

    def run(self, executable: Executable, step: Any) -> None:
        """Computes a step, and gives the requests what they capture."""
        self._compute(executable, step)
        for result in self._captured:
            values: np.ndarray | None = None
            for place, one in enumerate(step.probes):
                rows = one.of(result.outputs)
                captured = one.probe.captures.get(result.name, ...) is result.expression
                if not captured or result.place not in (None, place) or not len(rows):
                    continue
                if values is None:
                    values = executable.value(result.node)
                total = self._sizes[result.outputs] if result.place is None else len(rows)
                own = values.reshape(total, -1)[rows if result.place is None else ...]
                at = step.outputs[rows] if result.outputs else rows
                label = result.label(one.probe.elsewhere.get(result.name, 0))
                one.probe.captured.put(label, own, step.positions[at])


def _count(x: Tensor) -> int:
    """The number of rows."""
    return x.shape[-1] if len(x.shape) > 1 else 1


def _copied(x: Tensor) -> Tensor:
    """A result F32 that can be kept."""
    return (x if x.op is not None else x.duplicate()).cast(DType.F32).contiguous()


class ItemTap(Tap):
    """Records what one request captures and patches into the graph that encodes an item of its
    prompt. The rows of a result are all of its dims but the first."""

    def __init__(self, ctx: Context, probe: Probe):
        one = np.zeros(1, np.int64)
        super().__init__(ctx, Step.blank(1, 1, probes=(Probed(probe, one, one),)), partial=True)
        self._probe = probe

    def _added(self, width: int, name: str, place: int, index: int) -> Tensor:
        return self._ctx.constant(self._probe.numbers(name, index), DType.F32)

    def _edit(self, step: Any, result: _Result, place: int, index: int) -> _Edit:
        rows = result.node.n_elements // result.node.dim(0)
        return _edit(Probed(self._probe, np.arange(rows), np.arange(0)), result, index, rows)

    def run(self, executable: Executable, step: Any) -> None:
        """Computes the item, and gives the request what it captures."""
        self._compute(executable, step)
        for result in self._captured:
            values = executable.value(result.node).reshape(-1, result.node.dim(0))
            self._probe.captured.append(result.label(), values)


def _edit(one: Probed, result: _Result, index: int, total: int) -> _Edit:
    """A function that changes the rows of one probe in a module's whole result."""
    rows = one.of(result.outputs)

    def edit(value: np.ndarray) -> None:
        flat = value.reshape(total, -1)
        flat[rows] = one.probe.apply(result.name, index, flat[rows])

    return edit
