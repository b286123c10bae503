"""Recurrent layers: states of a fixed size in place of keys and values by position.

A slot holds the states of all layers after some number of tokens. A step reads one slot a sequence
and writes a free one, never the one it read: sequences can share a slot until they diverge, a step
can be undone, and an earlier state is kept by not freeing its slot. Slot 0 stays zero: empty
sequences begin there. The slots to read and write are data (row indices), so that graphs are
replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import ClassVar, NoReturn

import numpy as np

from ..errors import ConfigError, Error, TensorError
from ..ml import Backend, Context, DType, Tensor
from ..model.batch import Step
from ..model.cache import Cache, CacheSpec, Saved, Size


class Recurrent(CacheSpec):
    """A layer that stores states, F32, each of a fixed shape a sequence.

    Args:
        checkpoints: the most earlier states of a sequence that are kept to resume from.
        shapes: name → shape of a state, one to three dims, as in
            `Recurrent(conv=(kernel - 1, width), ssm=(state, head, heads))`.

    Raises:
        ConfigError: no state, or an impossible shape or number.
    """

    can_rewind: ClassVar[bool] = False

    def __init__(self, *, checkpoints: int = 4, **shapes: tuple[int, ...]):
        if not isinstance(checkpoints, int) or checkpoints < 0:
            raise ConfigError(f"{checkpoints!r} checkpoints; it must be a number from 0 on")
        if not shapes:
            raise ConfigError("a recurrent layer without states; give a shape by name, conv=(3, 8)")
        for name, shape in shapes.items():
            whole = isinstance(shape, tuple) and all(isinstance(n, int) and n > 0 for n in shape)
            if not whole or not 1 <= len(shape) <= 3:
                raise ConfigError(
                    f"the state {name!r} has the shape {shape!r}; it must be one to three dims "
                    "above 0"
                )
        self.checkpoints, self.shapes = checkpoints, shapes

    @property
    def kind(self) -> Hashable:
        return ("recurrent", self.checkpoints)

    def new_cache(
        self, backend: Backend, layers: Mapping[int, Recurrent], dtype: DType, size: Size
    ) -> RecurrentCache:
        """`dtype` does not apply: states stay F32, because errors in them add up."""
        return RecurrentCache(backend, layers, self.checkpoints, size)


@dataclass(frozen=True)
class State:
    """A slot that a sequence remembers.

    Attributes:
        position: the next position: the state is that after so many tokens.
        checkpoint: whether it is kept when the sequence is continued.
    """

    position: int
    slot: int
    checkpoint: bool


@dataclass(frozen=True)
class Placed:
    """The slots of one step's sequences, in the order of their rows.

    Attributes:
        groups: (tokens a sequence, sequences) of neighbours with equally many tokens.
        read, written: int32 [sequences], slots; None when only reserving.
        before: sequence → its states and length before the step.
    """

    groups: tuple[tuple[int, int], ...]
    read: np.ndarray | None = None
    written: np.ndarray | None = None
    before: Mapping[int, tuple[tuple[State, ...], int]] = field(default_factory=dict)


class RecurrentCache(Cache):
    """States of layers, in slots.

    A sequence can be resumed at its end and at its checkpoints. A step with several tokens of a
    sequence, such as a piece of a prompt, leaves a checkpoint at its end; the oldest are dropped.
    After a tentative step it can also be resumed where that began, until the next step.

    Args:
        layers: layer number → its declaration.
        checkpoints: the most that a sequence keeps.

    Attributes:
        slots: number of slots: for each sequence its checkpoints, its state, and the next one.
        states: sequence → its states, the earliest first.
        stored: layer → name → F32 [elements, slots].
    """

    def __init__(
        self, backend: Backend, layers: Mapping[int, Recurrent], checkpoints: int, size: Size
    ):
        self.backend, self.checkpoints = backend, checkpoints
        self.max_batch = size.max_batch
        self.slots = 1 + size.sequences * (checkpoints + 2)
        self.states: list[tuple[State, ...]] = [()] * size.sequences
        self.lengths = np.zeros(size.sequences, np.int32)
        self._shapes = {layer: spec.shapes for layer, spec in layers.items()}
        self._ctx = backend.new_context()
        self.stored = {
            layer: {name: self._new(layer, name, math.prod(s)) for name, s in shapes.items()}
            for layer, shapes in self._shapes.items()
        }

    def _new(self, layer: int, name: str, elements: int) -> Tensor:
        tensor = self._ctx.layer(layer).zeros(DType.F32, elements, self.slots)
        tensor.name = f"cache.{layer}.{name}"
        return tensor

    # a step

    def start_forward(self, step: Step, reserve: bool = False) -> None:
        """Takes a free slot for each sequence of the step; one is always free.

        Raises:
            Error: the rows of a sequence are not consecutive, or it cannot be continued there;
                nothing has changed.
        """
        if reserve:
            step.placed[self] = Placed(self._largest(len(step.positions)))
            return
        pieces = self._pieces(step)
        for s in pieces:  # no longer needed, if it was kept for a tentative step
            *earlier, latest = self.states[s] or (None,)
            kept = (*(state for state in earlier if state.checkpoint), latest)
            self.states[s] = tuple(state for state in kept if state is not None)
        before = {s: (self.states[s], self.lengths[s]) for s in pieces}
        reads, writes = [], self._free()[: len(pieces)]
        groups = tuple((n, len(list(alike))) for n, alike in groupby(pieces.values()))
        step.placed[self] = Placed(groups, before=before)  # for `undo` after Ctrl-C
        for (sequence, n), slot in zip(pieces.items(), writes, strict=True):
            states = self.states[sequence]
            reads.append(states[-1].slot if states else 0)
            kept = [state for state in states if state.checkpoint]
            del kept[: max(0, len(kept) - self.checkpoints)]
            tentative = sequence in step.tentative
            if tentative and states and states[-1] not in kept:
                kept.append(states[-1])
            self.lengths[sequence] += n
            checkpoint = n > 1 and not tentative
            self.states[sequence] = (*kept, State(self.length(sequence), slot, checkpoint))
        slots = np.array([reads, writes], np.int32)
        step.placed[self] = Placed(groups, slots[0], slots[1], before)

    def _largest(self, n: int) -> tuple[tuple[int, int], ...]:
        """Groups of n tokens that need the most memory: one token of each sequence, and the rest
        of one sequence."""
        single = min(n, len(self.lengths)) - 1
        return ((1, single), (n - single, 1)) if single else ((n, 1),)

    def _pieces(self, step: Step) -> dict[int, int]:
        """Sequence → number of its tokens in the step, in the order of their rows."""
        pieces: dict[int, int] = {}
        rows = zip(step.sequences.tolist(), step.positions.tolist(), strict=True)
        for sequence, piece in groupby(rows, itemgetter(0)):
            positions = [position for _, position in piece]
            start, n = positions[0], len(positions)
            if sequence in pieces or positions != list(range(start, start + n)):
                raise Error(
                    f"the tokens of sequence {sequence} are not in one piece, by position, which a "
                    "recurrent layer needs"
                )
            if start != self.lengths[sequence] or not self.can_resume(sequence, start):
                raise Error(
                    f"sequence {sequence}, of {self.lengths[sequence]} positions, cannot go on at "
                    f"position {start}; remove({sequence}, {self.resume_point(sequence, start)}, "
                    "None) and compute what follows again"
                )
            pieces[sequence] = n
        return pieces

    def _free(self) -> list[int]:
        """Slots that no sequence remembers; at least one a sequence."""
        used = {state.slot for states in self.states for state in states}
        return [slot for slot in range(1, self.slots) if slot not in used]

    def undo(self, step: Step) -> None:
        placed: Placed = step.placed.pop(self, Placed(()))
        for sequence, (states, length) in placed.before.items():
            self.states[sequence], self.lengths[sequence] = states, length

    def shape_key(self, step: Step) -> Hashable:
        return step.placed[self].groups

    def layers(self, ctx: Context, step: Step) -> dict[int, LayerStates]:
        groups: list[Group] = []
        row = first = 0
        for n, sequences in step.placed[self].groups:
            groups.append(self._group(ctx, row, n, first, sequences))
            row, first = row + n * sequences, first + sequences
        return {
            layer: LayerStates(ctx, layer, self._shapes[layer], stored, groups)
            for layer, stored in self.stored.items()
        }

    def _group(self, ctx: Context, row: int, n: int, first: int, sequences: int) -> Group:
        def slots(which: str) -> Tensor:
            def fill(step: Step) -> np.ndarray:
                return getattr(step.placed[self], which)[first : first + sequences]

            return ctx.feed(fill, DType.I32, sequences, trusted=True, name=f"slots {which}")

        return Group(row, n, sequences, slots("read"), slots("written"))

    # sequences

    def can_resume(self, sequence: int, position: int) -> bool:
        return self.resume_point(sequence, position) == position

    def resume_point(self, sequence: int, position: int) -> int:
        positions = (state.position for state in self.states[sequence])
        return max((p for p in positions if p <= position), default=0)

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self.lengths[target], self.states[target] = self.lengths[source], self.states[source]
        self._cut(target, n)

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> Saved:
        """The part has positions, int32 [states], whether each is a checkpoint, bool [states], then
        the states, uint8 [states, bytes], of all layers. With an `end` it has that one alone."""
        states = [one for one in self.states[sequence] if end in (None, one.position)]
        length = self.length(sequence) if end is None else end
        if not states:
            return Saved(length, [None])
        slots = np.array([state.slot for state in states], np.int64)
        rows = [self.backend.read_rows(one, slots) for one in self._all_stored()]
        positions = np.array([state.position for state in states], np.int32)
        kept = np.array([state.checkpoint for state in states], np.bool_)
        return Saved(length, [[positions, kept, *rows]])

    def restore(self, sequence: int, saved: Saved) -> None:
        self.remove(sequence, 0, None)
        (part,) = saved.parts
        assert part is not None
        positions, kept, *rows = part
        slots = np.array(self._free()[: len(positions)], np.int64)
        for one, data in zip(self._all_stored(), rows, strict=True):
            self.backend.write_rows(one, slots, data)
        each = zip(positions.tolist(), slots.tolist(), kept.tolist(), strict=True)
        self.states[sequence] = tuple(State(*one) for one in each)
        self.lengths[sequence] = saved.length

    def needs_from(self, length: int) -> tuple[int]:
        return (max(0, length - 1),)

    def _all_stored(self) -> Iterator[Tensor]:
        return (one for states in self.stored.values() for one in states.values())

    def check_remove(self, sequence: int, begin: int, end: int | None) -> None:
        if end is not None and begin < end < self.lengths[sequence]:
            raise Error(
                f"sequence {sequence} has layers whose state cannot lose positions {begin} to "
                f"{end}; remove({sequence}, {self.resume_point(sequence, begin)}, None) and "
                "compute what follows again"
            )

    def remove(
        self, sequence: int, begin: int, end: int | None, moves: np.ndarray | None = None
    ) -> None:
        """
        Raises:
            Error: the positions are not the last ones; nothing has changed.
        """
        self.check_remove(sequence, begin, end)
        if end is None or begin < end:
            self._cut(sequence, begin)

    def _cut(self, sequence: int, length: int) -> None:
        states = self.states[sequence]
        self.states[sequence] = tuple(state for state in states if state.position <= length)
        self.lengths[sequence] = min(length, self.lengths[sequence])

    def wipe(self, sequence: int) -> None:
        self.remove(sequence, 0, None)
        free = self._free()
        with self.backend.new_context() as ctx, ctx.trace():
            ids, zero = (ctx.input().from_ints(x) for x in (free, [0] * len(free)))
            for stored in self.stored.values():
                for states in stored.values():
                    ctx.forward(states.set_rows(states.rows(zero), ids))
            ctx.compute()

    def close(self) -> None:
        self._ctx.close()


@dataclass(frozen=True)
class Group:
    """Sequences with equally many tokens in a batch, in consecutive rows.

    Attributes:
        row: the first row.
        n: tokens of each sequence.
        reads, writes: I32 [sequences], the slots before and after the step.
    """

    row: int
    n: int
    sequences: int
    reads: Tensor
    writes: Tensor


class LayerStates:
    """One layer's states in a graph being recorded."""

    def __init__(
        self,
        ctx: Context,
        layer: int,
        shapes: Mapping[str, tuple[int, ...]],
        stored: Mapping[str, Tensor],
        groups: list[Group],
    ):
        self.ctx, self.layer, self.shapes, self.stored = ctx, layer, shapes, stored
        self._groups = groups
        self._stepped = False

    def each(self, step: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """Steps all sequences of the batch, in one call for all with equally many tokens.

        Args:
            step: called with a `Part` and its piece [d, tokens, sequences] of each of `rows`; it
                puts every state and returns [e, tokens, sequences].
            rows: each [d, batch].

        Returns:
            [e, batch].

        Raises:
            TensorError: shapes that do not fit, a state that was not put, a second call.
        """
        if self._stepped:
            raise TensorError(f"the states of layer {self.layer} were stepped twice in one forward")
        self._stepped = True
        n = sum(group.n * group.sequences for group in self._groups)
        for x in rows:
            if x.ne[1:] != (n, 1, 1):
                raise TensorError(f"each() takes rows [d, {n}], one a token, not {x.describe()}")
        done = [self._step(group, step, rows) for group in self._groups]
        return done[0].stack(1, *done[1:])

    def put(self, *tensors: Tensor) -> NoReturn:
        """Refused, as are `get` and `rotate`: states are stepped, keys and values are stored.

        Raises:
            TensorError: always.
        """
        raise TensorError(
            f"layer {self.layer} is Recurrent and stores no keys and values: call "
            "each(step, x) of its cache, and get and put of the part that step is called with"
        )

    get = rotate = put

    def _step(self, group: Group, step: Callable[..., Tensor], rows: tuple[Tensor, ...]) -> Tensor:
        part, n = Part(self, group), group.n * group.sequences
        pieces = (x.slice(1, group.row, group.row + n) for x in rows)
        y = step(part, *(x.contiguous(x.dim(0), group.n, group.sequences) for x in pieces))
        missing = [name for name in self.shapes if name not in part.done]
        if missing:
            raise TensorError(f"layer {self.layer} was stepped without put({missing[0]!r}, …)")
        if not isinstance(y, Tensor) or y.ne[1:] != (group.n, group.sequences, 1):
            what = y.describe() if isinstance(y, Tensor) else type(y).__name__
            raise TensorError(
                f"the step of layer {self.layer} returned {what}; it must return "
                f"[e, {group.n}, {group.sequences}]: width, tokens, sequences"
            )
        return y.contiguous(y.dim(0), n)


class Part:
    """The states of one layer for some sequences of a batch, with equally many tokens each.

    Attributes:
        n: tokens of each sequence.
        sequences: number of sequences.
        ids: I32 [sequences], the slots of their states before the step.
        done: names of the states that were put.
    """

    def __init__(self, layer: LayerStates, group: Group):
        self._layer, self._writes = layer, group.writes
        self.n, self.sequences, self.ids = group.n, group.sequences, group.reads
        self.done: set[str] = set()

    def slots(self, name: str) -> Tensor:
        """All slots, [*shape, slots], for ops that take `ids` themselves."""
        stored = self._stored(name)
        return stored.reshape(*self._layer.shapes[name], stored.dim(1))

    def get(self, name: str) -> Tensor:
        """The state before the first token, [*shape, sequences]."""
        rows = self._stored(name).rows(self.ids)
        return rows.reshape(*self._layer.shapes[name], self.sequences)

    def put(self, name: str, state: Tensor) -> None:
        """Stores the state after the last token, F32 [*shape, sequences], or flat.

        Raises:
            TensorError: an unknown name, another number of elements, or a second call.
        """
        stored = self._stored(name)
        if name in self.done:
            raise TensorError(f"the state {name!r} of layer {self._layer.layer} was put twice")
        self.done.add(name)
        rows = state.contiguous(stored.dim(0), self.sequences)
        self._layer.ctx.forward(stored.set_rows(rows, self._writes))

    def _stored(self, name: str) -> Tensor:
        if name not in self._layer.stored:
            names = ", ".join(self._layer.stored)
            raise TensorError(f"layer {self._layer.layer} has no state {name!r}; it has {names}")
        return self._layer.stored[name]
