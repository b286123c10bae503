"""Recorded graphs of encoders, replayed for every item of their shape, and the keys of items."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import chain, count
from pathlib import PurePath
from typing import Any

import numpy as np

from ...ml import Backend, Context, Executable, Tensor
from ...model import Multimodal, Prepared
from ...resources import closed_on_error
from .graphs import Compiled
from .probes import ItemTap

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
        self._entries: OrderedDict[bytes, Compiled[list[list[Tensor]]]] = OrderedDict()
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
                entry = Compiled(recorded.ctx, chain(*tensors, probed), tensors, tap=tap)
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
