"""Compressed layers: one entry for every few positions, made of the rows of these.

Two caches hold a layer: the rows of positions whose entries are not complete, and the entries.
Entry w stands for positions w · rate to (w + 1) · rate − 1. A position sees the entries that are
complete with it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import ConfigError, Error, TensorError, Unsupported
from ..ml import Backend, CacheConfig, Context, DType, Tensor
from ..ml.node import Rows
from ..ml.ops.mixing import ORDER_ROW
from ..model.batch import Step
from ..model.cache import Cache, CacheSpec, Rotation, Saved, Size
from . import seen
from .causal import CausalCache
from .cells import Masks, Window, around
from .layer import LayerCache, mask_of
from .order import Order, lists_size
from .seen import P, Rule
from .specs import Causal, need_span


@dataclass(frozen=True)
class Compressed(CacheSpec):
    """A layer that stores an entry for every few positions, beside a window of all of them.

    Attributes:
        entry_positions: how many an entry stands for.
        row_width: numbers that an entry is made of, for each of its positions.
        entry_width: numbers of an entry.
        overlap: an entry is made of the positions of the one before, too.
        most_read: the most entries that a position reads, which the layer chooses; 0 is all.

    Raises:
        ConfigError: a rate below one position.
    """

    entry_positions: int
    row_width: int
    entry_width: int
    overlap: bool = False
    most_read: int = 0

    def __post_init__(self):
        need_span("compressed entry", self.entry_positions)
        if min(self.row_width, self.entry_width) < 1 or self.most_read < 0:
            raise ConfigError(
                f"entries of {self.entry_width} numbers made of {self.row_width}; at least 1"
            )

    @property
    def kind(self) -> Hashable:
        return ("compressed", self.entry_positions, self.overlap, self.most_read)

    @property
    def made_of(self) -> int:
        """Positions that an entry is made of."""
        return self.entry_positions * (1 + self.overlap)

    def new_cache(
        self, backend: Backend, layers: Mapping[int, Compressed], dtype: DType, size: Size
    ) -> CompressedCache:
        return CompressedCache(backend, self, layers, dtype, size)


@dataclass(frozen=True)
class _Incomplete(Rule):
    """Positions that an entry is to be made of, the latest complete one with `overlap` included."""

    rate: int
    overlap: bool
    rope: Rotation | None = None
    shares: int | None = None

    @property
    def kind(self) -> Hashable:
        return self

    @property
    def span(self) -> int:
        return self.rate * (1 + self.overlap)

    def sees_from(self, position: P) -> P:
        return (position // self.rate - self.overlap) * self.rate

    def new_cache(self, backend: Backend, layers: Mapping, dtype: DType, size: Size) -> CausalCache:
        return CausalCache(backend, self, layers, dtype, size)


@dataclass(slots=True)
class Placed(seen.Placed):
    """The entries of one step, and what its rows see of all.

    Attributes:
        made: a step of the entries that this one completes: `positions` are their numbers.
        sources: int32 [entries made · positions of an entry], the cells of their rows; any of the
            same text's before its begin.
        absent: float32 [entries made, positions of an entry], −inf before a text's begin, else 0.
        scores: float32 [n, window], 0 or −inf; None where all entries are read.
    """

    made: Step | None = None
    sources: np.ndarray | None = None
    absent: np.ndarray | None = None
    scores: np.ndarray | Rows | None = None


_NONE = np.zeros(0, np.int64)


class CompressedCache(Cache):
    """Entries of layers with equal rates.

    Attributes:
        incomplete: rows by position, F32.
        entries: by number.
    """

    def __init__(
        self,
        backend: Backend,
        spec: Compressed,
        layers: Mapping[int, Compressed],
        dtype: DType,
        size: Size,
    ):
        if dtype.is_quantized:
            raise Unsupported(
                f"kv_type {dtype.name.lower()}: compressed layers read entries and keys as one; "
                "use kv_type 'f16'"
            )
        self.spec, self.longest = spec, max(1, size.capacity // spec.entry_positions)
        self._rule = Causal()
        fewer = Size(size.sequences, self.longest, size.max_batch)
        rows: Rule = _Incomplete(spec.entry_positions, spec.overlap)
        self.incomplete = CausalCache(backend, rows, dict.fromkeys(layers, rows), DType.F32, size)
        entries = dict.fromkeys(layers, self._rule)
        self.entries = CausalCache(backend, self._rule, entries, dtype, fewer)
        for layer, one in layers.items():
            self.incomplete.stored.rows(layer, "rows", one.row_width)
            self.entries.stored.rows(layer, "entries", one.entry_width)
        self.max_batch, self.ranges = self.incomplete.max_batch, 2 * self.entries.ranges
        config = backend.cache_config
        self._masks, self._scores = Masks(config, size.sequences), Masks(CacheConfig())
        self.config, self._sequences = config, size.sequences

    # a step

    def start_forward(self, step: Step, reserve: bool = False) -> None:
        rate, n = self.spec.entry_positions, len(step.positions)
        if reserve:
            most = min(n, n // rate + self._sequences, self.entries.table.count)
            made = Step.blank(most, 0)
            self.incomplete.start_forward(step, True)
            self.entries.start_forward(made, True)
            window, lists = made.placed[self.entries].window, made.placed[self.entries].lists
            step.placed[self] = Placed(_NONE, window, None, lists=lists, made=made)
            return
        completes = np.flatnonzero((step.positions + 1) % rate == 0)
        tokens, sequences = step.tokens[completes], step.sequences[completes]
        made = Step(tokens, step.positions[completes] // rate, sequences, np.zeros(0, np.int32))
        self.incomplete.start_forward(step)
        placed = step.placed[self] = Placed(_NONE, Window(0, 0), None, made=made)
        try:
            if len(completes):
                self.entries.start_forward(made)
            self._find(made, placed)
            self._look(step, placed)
        except BaseException:  # Ctrl-C included
            self.undo(step)
            raise

    def _find(self, made: Step, placed: Placed) -> None:
        """The cells of the rows that entries are made of.

        Raises:
            Error: a text does not have all of them.
        """
        spec, table = self.spec, self.incomplete.table
        first = (made.positions - spec.overlap) * spec.entry_positions
        sources = np.zeros((len(first), spec.made_of), np.int32)
        for row, sequence, begin in zip(sources, made.sequences, first, strict=True):
            behind = table.position - begin
            mine = table.member[sequence] & (behind >= 0) & (behind < spec.made_of)
            cells = np.flatnonzero(mine)
            if len(cells) < spec.made_of + min(begin, 0):
                raise Error(f"sequence {sequence} has lost rows that its next entry is made of")
            row[:] = cells[0]  # another text's row may hold a NaN, which no weight of 0 hides
            row[behind[cells]] = cells
        places = first[:, None] + np.arange(spec.made_of)
        placed.sources = sources.reshape(-1)
        placed.absent = np.where(places < 0, np.float32(-np.inf), np.float32(0))

    def _look(self, step: Step, placed: Placed) -> None:
        """The entries that each row sees."""
        table, rule = self.entries.table, self._rule
        placed.window = around(0, max(1, table.end), self._masks.padding)
        complete = (step.positions + 1) // self.spec.entry_positions - 1
        rows = Step(step.tokens, complete.astype(np.int32), step.sequences, step.outputs)
        if self.config.ordered:
            placed.order = seen.order_of(rule, table, rows, 0)
            placed.lists = placed.order.lists(len(complete))
        else:
            seen.look(rule, table, self._masks, rows, placed)
        if self.chooses(placed.window):
            scores = seen.Placed(_NONE, placed.window, None)
            seen.look(rule, table, self._scores, rows, scores)
            placed.scores = scores.mask

    def chooses(self, window: Window) -> bool:
        """Whether there may be more entries than a position reads."""
        return 0 < self.spec.most_read < window.size

    def undo(self, step: Step) -> None:
        placed: Placed | None = step.placed.pop(self, None)
        if placed is not None and placed.made is not None:
            placed.made.begun = step.begun
            self.entries.undo(placed.made)
        self.incomplete.undo(step)

    def shape_key(self, step: Step) -> Hashable:
        placed = step.placed[self]
        return len(placed.made.positions), placed.window, placed.lists

    def layers(self, ctx: Context, step: Step) -> dict[int, LayerEntries]:
        feeds = EntryFeeds(ctx, self, step)
        return {layer: LayerEntries(layer, feeds) for layer in self.entries.stored.keys}

    # sequences

    def length(self, sequence: int) -> int:
        return self.incomplete.length(sequence)

    def can_resume(self, sequence: int, position: int) -> bool:
        complete = position // self.spec.entry_positions
        held = self.incomplete.can_resume(sequence, position)
        return held and self.entries.can_resume(sequence, complete)

    def allocate(self, sequence: int, length: int) -> None:
        self.incomplete.allocate(sequence, length)
        self.entries.allocate(sequence, length // self.spec.entry_positions)

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self.incomplete.copy_prefix(source, target, n)
        self.entries.copy_prefix(source, target, n // self.spec.entry_positions)

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> Saved | None:
        """Two parts, as `CausalCache.save` makes them: the rows of positions begin to end, and the
        entries that these complete."""
        end, rate = self.length(sequence) if end is None else end, self.spec.entry_positions
        rows = self.incomplete.save(sequence, begin, end)
        entries = self.entries.save(sequence, begin // rate, end // rate)
        if rows is None or entries is None:
            return None
        return Saved(end, [*rows.parts, *entries.parts])

    def restore(self, sequence: int, saved: Saved) -> None:
        rows, entries = saved.parts
        complete = saved.length // self.spec.entry_positions
        try:
            self.incomplete.restore(sequence, Saved(saved.length, [rows]))
            self.entries.restore(sequence, Saved(complete, [entries]))
        except BaseException:  # Ctrl-C included
            self.remove(sequence, 0, None)
            raise

    def needs_from(self, length: int) -> tuple[int, int]:
        return (*self.incomplete.needs_from(length), 0)

    def check_remove(self, sequence: int, begin: int, end: int | None) -> None:
        if end is not None and begin < end < self.length(sequence):
            raise Error(
                f"positions of sequence {sequence} cannot move: entries are made of several; "
                f"remove({sequence}, 0, None) and compute it again"
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
            self.incomplete.remove(sequence, begin, None)
            self.entries.remove(sequence, begin // self.spec.entry_positions, None)

    def wipe(self, sequence: int) -> None:
        self.incomplete.wipe(sequence)
        self.entries.wipe(sequence)

    def close(self) -> None:
        self.incomplete.close()
        self.entries.close()


class EntryFeeds:
    """The inputs that all layers of one recorded batch share.

    Attributes:
        made: number of entries that the batch completes.
        window: the entries that are read.
        cells: I64 [n], of the tokens' rows.
        sources, entries: I32 [positions of an entry · made] and I64 [made], the cells of the rows
            that entries are made of, and theirs.
        absent: F32 [positions of an entry, 1, made], −inf before a text's begin, else 0.
        positions: I32 [made], of each entry's first.
        scores: F32 [window, n], 0 for entries that a token sees, else −inf; None where it reads
            all of them.
    """

    def __init__(self, ctx: Context, cache: CompressedCache, step: Step):
        self.ctx, self.cache, self._step = ctx, cache, step
        placed = step.placed[cache]
        self.made, self.window = len(placed.made.positions), placed.window
        spec, n, made = cache.spec, len(step.positions), self.made
        incomplete, entries = cache.incomplete, cache.entries
        feed = partial(ctx.feed, trusted=True)
        self.cells = feed(lambda s: s.placed[incomplete].cells, DType.I64, n, name="cells")
        if made:
            self.sources = feed(
                lambda s: s.placed[cache].sources, DType.I32, spec.made_of * made, name="cells"
            )
            self.absent = feed(
                lambda s: s.placed[cache].absent[:, None], DType.F32, spec.made_of, 1, made
            )
            self.entries = feed(
                lambda s: s.placed[cache].made.placed[entries].cells, DType.I64, made, name="cells"
            )
            self.positions = feed(
                lambda s: s.placed[cache].made.positions * spec.entry_positions, DType.I32, made
            )
        self.scores: Tensor | None = None
        if cache.chooses(self.window):
            self.scores = feed(lambda s: s.placed[cache].scores, DType.F32, self.window.size, n)
        self._masks: dict[Cache, Tensor] = {}

    def mask(self, local: LayerCache) -> Tensor:
        """See `LayerEntries.mask`."""
        other = local.feeds.cache
        if other not in self._masks:
            self._masks[other] = self._joined(other, local.feeds.mask)
        return self._masks[other]

    def _joined(self, other: Cache, mask: Tensor) -> Tensor:
        cache, step, shift = self.cache, self._step, self.window.size
        if not cache.config.ordered:
            own = mask_of(cache.entries.stored.backend, self.ctx, cache, step)
            return own.concat(mask, 0)
        n, near = len(step.positions), step.placed[other]
        most = min(step.placed[cache].lists, cache.longest)
        size = lists_size(n * (most + min(near.lists, near.window.size)))

        def numbers(step: Step) -> np.ndarray:
            entries, local = (step.placed[one].order for one in (cache, other))
            return joined(entries, local, n, shift, size)

        return self.ctx.feed(numbers, DType.I32, ORDER_ROW * n + size, name="order")


class LayerEntries:
    """One layer's entries in a graph being recorded."""

    def __init__(self, layer: int, feeds: EntryFeeds):
        self.layer, self.feeds = layer, feeds
        self._rows = feeds.cache.incomplete.stored.keys[layer]
        self._entries = feeds.cache.entries.stored.keys[layer]
        self._collected = False

    def collect(self, rows: Tensor) -> Tensor | None:
        """Stores rows F32 [row, n] of this batch's tokens.

        Returns:
            F32 [row, positions of an entry, made], those of each entry that the batch completes;
            before a text's begin they are any. None where it completes none.

        Raises:
            TensorError: a second call in one forward.
        """
        if self._collected:
            raise TensorError(f"rows of layer {self.layer} were collected twice in one forward")
        self._collected = True
        feeds = self.feeds
        feeds.ctx.forward(self._rows.set_rows(rows, feeds.cells))
        if not feeds.made:
            return None
        return self._rows.rows(feeds.sources).reshape(rows.dim(0), -1, feeds.made)

    @property
    def absent(self) -> Tensor:
        """F32 [positions of an entry, 1, made], −inf before a text's begin, else 0."""
        return self.feeds.absent

    @property
    def positions(self) -> Tensor:
        """I32 [made], the first of each entry."""
        return self.feeds.positions

    def put(self, entries: Tensor) -> None:
        """Stores the entries [entry, made] that the batch completes."""
        self.feeds.ctx.forward(self._entries.set_rows(entries, self.feeds.entries))

    def get(self) -> Tensor:
        """The entries that the batch reads, [entry, 1, m]; `mask` says which row sees which."""
        window = self.feeds.window
        row = self._entries.stride(1)
        return self._entries.view(0, self._entries.dim(0), row, 1, row, window.size)

    def mask(self, local: LayerCache) -> Tensor:
        """The mask, or the order, of attention that reads these entries, then the keys that the
        `local` memory of the same layer gives."""
        return self.feeds.mask(local)

    @property
    def scores(self) -> Tensor | None:
        """F32 [m, n], 0 where a row sees an entry, else −inf; None where there are no more than
        `Compressed.most_read`."""
        return self.feeds.scores


def joined(first: Order, second: Order, n: int, shift: int, size: int) -> np.ndarray:
    """The numbers of an order, int32 [5·n + size], of rows that see the cells of a first order and
    those of a second, `shift` cells further on. Each row has a list of its own."""
    numbers = np.zeros(ORDER_ROW * n + size, np.int32)
    rows, at = numbers[: ORDER_ROW * n].reshape(n, ORDER_ROW), 0
    for i, row in enumerate(rows):
        near = second.seen(n, i)
        cells = np.concatenate([first.seen(n, i), near + shift])
        numbers[ORDER_ROW * n + at :][: len(cells)] = cells
        row[:] = at, len(cells), 0, 0, len(cells)
        at += len(cells)
    return numbers
