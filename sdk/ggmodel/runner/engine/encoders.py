"""Compiled graphs of encoders, run again for every item of one shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...closing import closed_on_error
from ...ml import Backend, Context, Executable, Tensor
from ...model import Multimodal, Prepared
from .content import content_key

_MOST_GRAPHS = 8  # each has a description, some 500 bytes an op
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
    """The recorded graph of an encoder, and its results."""

    ctx: Context
    made: Sequence[Multimodal]

    @property
    def tensors(self) -> list[list[Tensor]]:
        """The rows of each result, and their parts."""
        return [[] if m.tensor is None else [m.tensor, *m.parts] for m in self.made]


class _Entry:
    """A compiled graph; the recording itself, which takes more memory, is dropped."""

    def __init__(self, recorded: Recorded):
        self.ctx, self._tensors = recorded.ctx, recorded.tensors
        graph = self.ctx.graph
        self.replayable = graph.replayable
        outputs = tuple(t for tensors in self._tensors for t in tensors)
        self.executable: Executable = graph.backend.compile(graph, outputs)
        self.executable.keep_only(outputs)
        graph.forget()

    def run(self, prepared: Prepared) -> list[list[np.ndarray]]:
        self.executable.run(prepared)
        return [[self._rows(t) for t in tensors] for tensors in self._tensors]

    def _rows(self, tensor: Tensor) -> np.ndarray:
        rows = self.executable.value(tensor).reshape(-1, tensor.dim(0))
        return np.array(rows, np.float32)

    def close(self) -> None:
        self.executable.close()
        self.ctx.close()


class Encoders:
    """The graphs of a model's encoders. All inputs of a graph that is kept are feeds: it depends on
    the shape and the data of an item, not on its values.

    Attributes:
        recorded, replayed: counts of items with a new graph, and with a known one.
    """

    def __init__(self, backend: Backend):
        self.backend = backend
        self._layouts: OrderedDict[bytes, list[Layout]] = OrderedDict()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self.recorded = self.replayed = 0

    def layout(self, key: bytes) -> list[Layout] | None:
        """The results for items of a shape that was recorded before; None for others, and for
        those whose graph cannot be kept."""
        return self._layouts.get(key)

    def know(self, key: bytes, recorded: Recorded) -> list[Layout]:
        """The results of a recorded graph, for `layout` if it can be run again."""
        found = [Layout.of(made) for made in recorded.made]
        if recorded.ctx.graph.replayable:
            self._layouts[key] = found
            while len(self._layouts) > _MOST_LAYOUTS:
                self._layouts.popitem(last=False)
        return found

    def run(
        self, key: bytes, prepared: Prepared, record: Callable[[], Recorded]
    ) -> list[list[np.ndarray]]:
        """Computes an item, in the engine's thread.

        Args:
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
                entry = _Entry(recorded)
        else:
            self.replayed += 1
        kept = False
        try:
            arrays = entry.run(prepared)
            kept = entry.replayable
            return arrays
        finally:
            if kept:
                self._entries[key] = entry
                while len(self._entries) > _MOST_GRAPHS:
                    self._entries.popitem(last=False)[1].close()
            else:
                entry.close()

    def close(self) -> None:
        """Frees the compiled graphs; idempotent."""
        while self._entries:
            self._entries.popitem()[1].close()
