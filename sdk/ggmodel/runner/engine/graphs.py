"""Recorded graphs, of steps and of encoders: replayed for every input of their shape."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import chain, count
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from ...ml import Backend, Context, Executable, Tensor
from ...ml.executable import run_for
from ...model import Batch, Multimodal, Prepared, Step
from ...resources import closed_on_error
from .adapters import Changes
from .inputs import Histories
from .probes import ItemTap, Tap

if TYPE_CHECKING:
    from ...kvcache import Cache


Forward = Callable[[Context, Batch], Tensor]
T = TypeVar("T")
# Shape of the step, its changes by adapters, `Cache.shape_key`, and keys of its probes.
Key = tuple[Hashable, ...]


@dataclass
class Trace:
    """The recording of a `forward`.

    Attributes:
        inputs: the tensor of token ids.
        states: [width, outputs], the hidden states that the output is made of; None if it is made
            without.
        output: [width, outputs], such as logits.
        changes: those by adapters; None without.
        tap: acts for the probes of the step; None without any. probed: the results that it keeps.
    """

    ctx: Context
    inputs: Tensor
    output: Tensor
    states: Tensor | None
    changes: Changes | None = None
    tap: Tap | None = None
    probed: tuple[Tensor, ...] = ()

    def close(self) -> None:
        self.ctx.close()


def trace(forward: Forward, backend: Backend, cache: Cache, step: Step) -> Trace:
    """Records a forward for steps of this shape.

    A step without outputs is computed for its cache entries alone: only these are scheduled.
    """
    ctx = backend.new_context().set_batch_size(len(step.tokens))
    with ctx.trace():
        tokens, outputs, embedded = step.shape
        k = 0 if step.components is None else len(step.components)
        batch = Batch(ctx, tokens, outputs, cache.layers(ctx, step), embedded, k)
        changes = Changes(ctx, step, batch) if step.adapted else None
        ctx.graph.changed = changes
        if step.probes:
            batch.whole, ctx.graph.tap = True, Tap(ctx, step)
        output = forward(ctx, batch)
    if len(step.outputs):
        ctx.forward(output)
    tap = ctx.graph.tap
    if not isinstance(tap, Tap):
        return Trace(ctx, batch.inputs, output, batch.states, changes)
    return Trace(ctx, batch.inputs, output, batch.states, changes, tap, tap.finish())


class _Compiled(Generic[T]):
    """A compiled graph; the recording itself, which takes more memory, is dropped.

    Args:
        outputs: the tensors that are computed.
        result: one of them, or all, as the caller reads them.
        states: another one, or None.
        tap: see `Trace`.
    """

    def __init__(
        self,
        ctx: Context,
        outputs: Iterable[Tensor],
        result: T,
        states: Tensor | None = None,
        tap: Tap | None = None,
    ):
        self.states, self.tap = states, tap
        self.ctx, self.result, graph, outputs = ctx, result, ctx.graph, tuple(outputs)
        self.replayable = graph.replayable
        self.executable: Executable = graph.backend.compile(graph, outputs)
        self.executable.keep_only(outputs)
        graph.forget()

    def close(self) -> None:
        self.executable.close()
        self.ctx.close()


class Graphs:
    """Runs steps of a model on a cache; a new shape is recorded once.

    Args:
        forward: the model, or a part of it with a result F32 [width, outputs].
        histories: of the sequences of the cache; None for models without positions of their own.
        keeps_states: the hidden states behind the results are results, too.
        most: so many graphs are kept, each with a description of some 500 bytes an op. Inputs and
            results share their memory.

    Attributes:
        states: those of the latest run, float32 [outputs, width]; None without.
        usual: how many graphs are kept of a text that fills the cache.
        recorded, replayed: counts of steps with a new graph, and with a known one.
    """

    def __init__(
        self,
        forward: Forward,
        backend: Backend,
        cache: Cache,
        histories: Histories | None = None,
        keeps_states: bool = False,
        most: int = 32,
    ):
        self.forward, self.backend, self.cache = forward, backend, cache
        self.histories, self.keeps_states = histories, keeps_states
        self.states: np.ndarray | None = None
        self._most = most
        self.usual = min(most, 1 + cache.ranges)
        self._entries: OrderedDict[Key, _Compiled[Tensor]] = OrderedDict()
        # A step that can be advanced, and the graph that it runs each time.
        self._latest: tuple[Step | None, _Compiled[Tensor] | None] = (None, None)
        self.recorded = self.replayed = 0

    def run(self, step: Step, meanwhile: Callable[[], None] | None = None) -> np.ndarray:
        """Computes a step that the cache has placed.

        Args:
            meanwhile: see `Executable.run`.

        Returns:
            float32 [outputs, width]; the next run of any graph may overwrite it.
        """
        if step.spans:
            step.compute_images()  # now: their graphs share memory with this one
        latest, entry = self._latest
        if entry is None or latest is not step or not entry.executable.valid:
            entry = self._entry(step)
        else:  # it was advanced
            self.replayed += 1
        step.begun, output = True, entry.result
        try:
            if entry.tap is not None:
                entry.tap.run(entry.executable, step)
            elif not len(step.outputs):
                entry.executable.run(step, meanwhile)
            if not len(step.outputs):
                return np.empty((0, output.dim(0)), np.float32)
            if entry.tap is not None:
                rows = entry.executable.value(output)
            else:
                rows = run_for(entry.executable, output, step, meanwhile)
            rows = rows.reshape(len(step.outputs), -1)
            if entry.states is not None:
                states = entry.executable.value(entry.states)
                self.states = states.reshape(len(step.outputs), -1)
            return rows if entry.replayable else rows.copy()
        finally:
            if not entry.replayable:
                entry.close()

    def _entry(self, step: Step) -> _Compiled[Tensor]:
        """The graph for steps of this shape."""
        probes = tuple(one.key for one in step.probes)
        key = (step.shape, step.adapted_key, self.cache.shape_key(step), probes)
        entry = self._entries.get(key)
        if entry is not None and not entry.executable.valid:
            self._drop(key)
            entry = None
        if entry is None:
            entry = self._record(step)
            if entry.replayable:
                self._keep(key, entry)
        else:
            self.replayed += 1
            self._entries.move_to_end(key)
        # Its arrays stay in memory: those of few tokens are small.
        kept = entry.replayable and len(step.outputs) == len(step.tokens) and not step.spans
        kept = kept and self.cache.advances
        self._latest = (step, entry) if kept else (None, None)
        return entry

    def _record(self, step: Step) -> _Compiled[Tensor]:
        self.recorded += 1
        traced = trace(self.forward, self.backend, self.cache, step)
        outputs = (traced.output,) if len(step.outputs) else ()
        states = traced.states if self.keeps_states and outputs else None
        with closed_on_error(traced):
            kept = outputs if states is None else (*outputs, states)
            kept = (*kept, *traced.probed)
            return _Compiled(traced.ctx, kept, traced.output, states, traced.tap)

    def _keep(self, key: Key, entry: _Compiled[Tensor]) -> None:
        self._entries[key] = entry
        while len(self._entries) > self._most:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        self._entries.pop(key).close()

    def close(self) -> None:
        """Frees all graphs; idempotent."""
        self._latest = (None, None)
        for key in list(self._entries):
            self._drop(key)


_PLAIN = (str, bytes, int, float, complex, type(None), np.generic, Enum, PurePath)
_serial, _process = count(), os.urandom(16)


def content_key(kind: str, item: object) -> bytes:
    """Equal for items of one kind with equal content.

    Args:
        item: what a modality has opened, or `Prepared`: pictures, arrays, plain values, and
            dataclasses, lists and dicts of these. Any other object is equal to itself only.
    """
    digest = hashlib.blake2b(kind.encode(), digest_size=32)
    _add(digest, item)
    return digest.digest()


def _add(digest: Any, value: Any) -> None:
    pictures: Any = sys.modules.get("PIL.Image")
    if isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"array {value.shape} {value.dtype.str} ".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif pictures is not None and isinstance(value, pictures.Image):
        from ...image import content_hash

        picture: Any = value
        digest.update(f"picture {content_hash(picture)} ".encode())
    elif is_dataclass(value) and not isinstance(value, type):
        digest.update(f"{type(value).__qualname__} ".encode())
        _add(digest, {f.name: getattr(value, f.name) for f in fields(value)})
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)} ".encode())
        for name in sorted(value, key=repr):
            _add(digest, name)
            _add(digest, value[name])
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)} ".encode())
        for one in value:
            _add(digest, one)
    elif isinstance(value, _PLAIN):
        text = repr(value).encode(errors="surrogatepass")
        digest.update(b"value %d " % len(text) + text)
    else:  # its repr may be that of another object, at the same address before
        digest.update(b"object %d of %b " % (next(_serial), _process))


_MOST_ENCODER_GRAPHS = 8  # each has a description, some 500 bytes an op
_MOST_LAYOUTS = 256


def shape_key(kind: str, prepared: Prepared) -> bytes:
    """Equal for items whose graphs are equal: their values differ, and nothing else."""
    return content_key(kind, [prepared.values.shape, prepared.data])


@dataclass(frozen=True, eq=False)
class Layout:
    """The results of an encoder for items of one shape.

    Attributes:
        shape: rows and numbers in one; None for data alone.
        widths: numbers in a row of each part.
        data, used: see `Multimodal`.
    """

    shape: tuple[int, int] | None
    widths: tuple[int, ...]
    data: object
    used: int | None

    @classmethod
    def of(cls, made: Multimodal) -> Layout:
        tensor, widths = made.tensor, tuple(part.dim(0) for part in made.parts)
        if tensor is None:
            return cls(None, widths, made.data, made.used)
        width = tensor.dim(0)
        return cls((tensor.n_elements // width, width), widths, made.data, made.used)


@dataclass(frozen=True, eq=False)
class Recorded:
    """The recorded graph of an encoder, and its results.

    Attributes:
        tap: acts for the request's probe; None where other requests may have the item, too.
    """

    ctx: Context
    made: Sequence[Multimodal]
    tap: ItemTap | None = None

    @property
    def tensors(self) -> list[list[Tensor]]:
        """The rows of each result, and their parts."""
        return [[] if m.tensor is None else [m.tensor, *m.parts] for m in self.made]


def _rows(executable: Executable, tensor: Tensor) -> np.ndarray:
    """The rows of a computed tensor, float32 [rows, width]; a copy."""
    return np.array(executable.value(tensor).reshape(-1, tensor.dim(0)), np.float32)


class Encoders:
    """The graphs of a model's encoders. All inputs of a graph that is kept are feeds: it depends on
    the shape and the data of an item, not on its values.

    Attributes:
        recorded, replayed: counts of items with a new graph, and with a known one.
    """

    def __init__(self, backend: Backend):
        self.backend = backend
        self._layouts: OrderedDict[bytes, list[Layout]] = OrderedDict()
        self._entries: OrderedDict[bytes, _Compiled[list[list[Tensor]]]] = OrderedDict()
        self.recorded = self.replayed = 0

    def layout(self, key: bytes) -> list[Layout] | None:
        """The results for items of a shape that was recorded before; None for others, and for
        those whose graph cannot be kept."""
        return self._layouts.get(key)

    def add_layouts(self, key: bytes, recorded: Recorded) -> list[Layout]:
        """The results of a recorded graph, for `layout` if it can be run again."""
        layouts = [Layout.of(made) for made in recorded.made]
        if recorded.ctx.graph.replayable:
            self._layouts[key] = layouts
            while len(self._layouts) > _MOST_LAYOUTS:
                self._layouts.popitem(last=False)
        return layouts

    def run(
        self, key: bytes, prepared: Prepared, record: Callable[[], Recorded]
    ) -> list[list[np.ndarray]]:
        """Computes an item, in the engine's thread.

        Args:
            key: of the shape; b"" for a graph that is run once.
            record: gives its recorded graph, if there is none that is compiled.

        Returns:
            of each result the rows and their parts, float32 [rows, width].
        """
        entry = self._entries.pop(key, None)
        if entry is not None and not entry.executable.valid:
            entry.close()
            entry = None
        if entry is None:
            self.recorded += 1
            recorded = record()
            with closed_on_error(recorded.ctx):
                tensors, tap = recorded.tensors, recorded.tap
                probed = () if tap is None else tap.finish()
                entry = _Compiled(recorded.ctx, chain(*tensors, probed), tensors, tap=tap)
        else:
            self.replayed += 1
        kept = False
        try:
            if entry.tap is None:
                entry.executable.run(prepared)
            else:
                entry.tap.run(entry.executable, prepared)
            arrays = [[_rows(entry.executable, t) for t in tensors] for tensors in entry.result]
            kept = entry.replayable and bool(key)
            return arrays
        finally:
            if kept:
                self._entries[key] = entry
                while len(self._entries) > _MOST_ENCODER_GRAPHS:
                    self._entries.popitem(last=False)[1].close()
            else:
                entry.close()

    def close(self) -> None:
        """Frees the compiled graphs; idempotent."""
        while self._entries:
            self._entries.popitem()[1].close()
