"""Keys and values as tensors: stored by cell, and read and written in a graph being recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..errors import TensorError, Unsupported
from ..ml import Backend, Context, DType, Tensor
from ..ml.ops.mixing import ORDER_ROW
from ..model.batch import Step
from ..model.cache import Cache, LayerMemory, Rotation
from .cells import Masks, Window

KV_TYPES = (DType.F32, DType.F16, DType.Q8_0, DType.Q4_0)
SPREAD = 128
"""Numbers of a head, at most, that a rotation before quantising spreads over one another."""

Heads = tuple[int, int]  # elements of each, and how many


class Stored:
    """The keys and values of some layers, for a number of cells.

    Attributes:
        ropes: layer number → the rotation of its keys; None if they are not rotated.
        keys: layer → [width · heads, cells].
        values: layer → as keys or, with the backend's `permuted_v`, [cells, width · heads]; none
            for layers that store rows of one kind alone.
        heads: layer → (width, number) of the heads of keys and of values.
        components: the most components that a position has for one of the ropes.
        at_once: the most cells that `rotate` and `clear` compute on at a time.
    """

    def __init__(
        self,
        backend: Backend,
        ropes: Mapping[int, Rotation | None],
        dtype: DType,
        cells: int,
        at_once: int,
    ):
        _need_kv_type(dtype, backend)
        self.backend, self.ropes, self.dtype, self.cells = backend, ropes, dtype, cells
        self.components = max((r.components for r in ropes.values() if r is not None), default=1)
        self.at_once = at_once
        self.permuted_v = backend.cache_config.permuted_v
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.heads: dict[int, tuple[Heads, Heads]] = {}
        self._ctx: Context = backend.new_context()

    def layer(self, layer: int, key: Heads, value: Heads) -> None:
        """Allocates the layer's keys and values on the first call.

        Args:
            key, value: width of a head, heads.
        """
        if layer in self.keys:
            return
        block = self.dtype.block_size
        for width, _ in (key, value):
            if width % block:
                raise Unsupported(
                    f"kv_type {self.dtype.name.lower()} stores blocks of {block} numbers, and the "
                    f"heads of layer {layer} have {width}; use kv_type 'f16'"
                )
        self.heads[layer] = key, value
        self.keys[layer] = self._state(f"cache.{layer}.k", layer, key[0] * key[1], self.cells)
        shape = value[0] * value[1], self.cells
        shape = shape[::-1] if self.permuted_v else shape
        self.values[layer] = self._state(f"cache.{layer}.v", layer, *shape)

    def rows(self, layer: int, name: str, width: int) -> None:
        """Allocates rows of one kind in place of the layer's keys and values."""
        self.keys[layer] = self._state(f"cache.{layer}.{name}", layer, width, self.cells)

    def _state(self, name: str, layer: int, *shape: int) -> Tensor:
        tensor = self._ctx.layer(layer).zeros(self.dtype, *shape)
        tensor.name = name
        return tensor

    def rotate(self, cells: np.ndarray, amounts: np.ndarray) -> None:
        """Rotates the keys in `cells`, int64 [n], by `amounts` of each position component, int32
        [n, k]."""
        if all(self.ropes[layer] is None for layer in self.keys):
            return
        for i, part in enumerate(self._parts(cells)):
            by = amounts[i * self.at_once : i * self.at_once + len(part)]
            with self.backend.new_context() as ctx, ctx.trace():
                self._rotate(ctx, part, by)
                ctx.compute()

    def _rotate(self, ctx: Context, cells: np.ndarray, amounts: np.ndarray) -> None:
        host, n = ctx.input(), len(cells)
        ids = host.from_ints(cells)

        @functools.cache  # layers share inputs
        def shifts(components: int) -> Tensor:
            return host.from_ints(amounts[:, :components].T.reshape(-1))

        @functools.cache
        def matrix(width: int) -> Tensor:
            return host.from_floats(hadamard(width))

        for layer, keys in self.keys.items():
            rope = self.ropes[layer]
            if rope is None:
                continue
            width = self.heads[layer][0][0]
            rows, by = keys.rows(ids).reshape(width, -1, n), shifts(rope.components)
            if self.dtype.is_quantized:
                own = matrix(spread_width(width))
                rows = spread(rope.move(spread(rows, own), by), own)
            else:
                rows = rope.move(rows, by)
            ctx.forward(keys.set_rows(rows.reshape(keys.dim(0), n), ids))

    def clear(self, cells: np.ndarray) -> None:
        """Overwrites the keys and values in `cells`, int64 [n], with zeros."""
        for part in self._parts(cells):
            with self.backend.new_context() as ctx, ctx.trace():
                self._clear(ctx, part)
                ctx.compute()

    def _clear(self, ctx: Context, cells: np.ndarray) -> None:
        host, n = ctx.input(), len(cells)
        ids = host.from_bytes(DType.I64, cells.tobytes(), n)

        @functools.cache  # layers share inputs
        def zeros(width: int) -> Tensor:
            return host.zeros(DType.F32, width, n)

        @functools.cache
        def places(width: int) -> Tensor:
            rows = scatter(width, self.cells, cells)
            return host.from_bytes(DType.I64, rows.tobytes(), len(rows))

        for keys in self.keys.values():
            ctx.forward(keys.set_rows(zeros(keys.dim(0)), ids))
        for values in self.values.values():
            if self.permuted_v:
                width = values.dim(1)
                flat = values.reshape(1, values.n_elements)
                ctx.forward(flat.set_rows(zeros(width).reshape(1, width * n), places(width)))
            else:
                ctx.forward(values.set_rows(zeros(values.dim(0)), ids))

    def save(self, cells: np.ndarray) -> list[np.ndarray]:
        """The bytes of keys and values in `cells`, int64 [n]: uint8 [n, bytes], layer by layer.
        Not with `permuted_v`, where those of a cell lie far apart."""
        stored = [*self.keys.values(), *self.values.values()]
        return [self.backend.read_rows(one, cells) for one in stored]

    def restore(self, cells: np.ndarray, saved: Sequence[np.ndarray]) -> None:
        """Writes what `save` gave for as many cells."""
        for one, data in zip((*self.keys.values(), *self.values.values()), saved, strict=True):
            self.backend.write_rows(one, cells, data)

    def _parts(self, cells: np.ndarray) -> Iterator[np.ndarray]:
        for i in range(0, len(cells) if self.keys else 0, self.at_once):
            yield cells[i : i + self.at_once]

    def close(self) -> None:
        """Frees keys and values; idempotent."""
        self._ctx.close()
        self.keys.clear()
        self.values.clear()


class Feeds:
    """The inputs that all layers of one recorded batch share.

    Args:
        step: placed in `cache`, whose `step.placed[cache]` has `cells`, `window` and `mask`.
        relative: `step.placed[cache]` has `positions`, too.

    Attributes:
        n: number of cells that a step writes.
        window: the cells that attention reads.
        rows: the cells that a step writes, I64 [n]; None if it writes none.
        mask: [window, tokens], or an order where the backend's attention is ordered.
        max_bias: of ALiBi; 0 is none.
    """

    def __init__(
        self,
        stored: Stored,
        ctx: Context,
        cache: Cache,
        step: Step,
        max_bias: float = 0.0,
        relative: bool = False,
    ):
        self.stored, self.ctx, self.cache, self.max_bias = stored, ctx, cache, max_bias
        self._relative = relative
        placed = step.placed[cache]
        self.window, self.n = placed.window, len(placed.cells)
        n = self.n
        self.rows = ctx.feed(self._cells, DType.I64, n, trusted=True, name="cells") if n else None
        self.mask = mask_of(stored.backend, ctx, cache, step)
        self._scattered: dict[int, Tensor] = {}
        self._matrices: dict[int, Tensor] = {}

    def by_distance(self, layer: int, fill: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        """See `LayerCache.by_distance`."""
        if not self._relative:
            raise TensorError(
                f"layer {layer} asks for distances; declare Causal(relative=True) in caches()"
            )

        def numbers(step: Step) -> np.ndarray:
            held = step.placed[self.cache].positions
            return fill(held - step.positions[:, None]).ravel()

        return self.ctx.feed(numbers, DType.I32, self.window.size * self.n, name="distances")

    def _cells(self, step: Step) -> np.ndarray:
        return step.placed[self.cache].cells

    def scattered(self, width: int) -> Tensor:
        """Row indices for values with `permuted_v`: one for each number, I64 [width · n]."""
        if width not in self._scattered:
            total = self.stored.cells
            self._scattered[width] = self.ctx.feed(
                lambda s: scatter(width, total, self._cells(s)),
                DType.I64,
                width * self.n,
                trusted=True,
                name="cells",
            )
        return self._scattered[width]

    def hadamard(self, width: int) -> Tensor:
        """F32 [width, width], see `hadamard`."""
        if width not in self._matrices:
            self._matrices[width] = self.ctx.feed(
                lambda _: hadamard(width), DType.F32, width, width, trusted=True, name="hadamard"
            )
        return self._matrices[width]


def mask_of(backend: Backend, ctx: Context, cache: Cache, step: Step) -> Tensor:
    """The mask, or the order, that a step has in `step.placed[cache]`."""
    config, placed, n = backend.cache_config, step.placed[cache], len(step.positions)
    if config.ordered:
        size = ORDER_ROW * n + placed.lists
        return ctx.feed(lambda s: s.placed[cache].order.numbers, DType.I32, size, name="order")
    shape = placed.window.size, Masks(config).rows(n)
    return ctx.feed(lambda s: s.placed[cache].mask, config.mask_dtype, *shape, name="mask")


class LayerCache(LayerMemory):
    """One layer's stored keys and values in a graph being recorded."""

    def __init__(self, stored: Stored, feeds: Feeds, layer: int):
        super().__init__(layer, stored.ropes[layer], feeds.max_bias)
        self.stored, self.feeds = stored, feeds

    def put(self, k: Tensor, v: Tensor) -> None:
        stored, feeds = self.stored, self.feeds
        if feeds.rows is None:
            raise TensorError(f"put() on the cache of layer {self.layer}: the batch has no rows")
        self.check_rotation(k)
        self._take()
        k, v = self.spread(k), self.spread(v)
        stored.layer(self.layer, (k.dim(0), k.dim(1)), (v.dim(0), v.dim(1)))
        keys, values = stored.keys[self.layer], stored.values[self.layer]
        feeds.ctx.forward(keys.set_rows(k.reshape(keys.dim(0), -1), feeds.rows))
        if stored.permuted_v:
            width = values.dim(1)
            flat = values.reshape(1, values.n_elements)
            written = flat.set_rows(v.reshape(1, width * feeds.n), feeds.scattered(width))
        else:
            written = values.set_rows(v.reshape(values.dim(0), -1), feeds.rows)
        feeds.ctx.forward(written)

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        stored, window = self.stored, self.feeds.window
        if self.layer not in stored.keys or (self.feeds.n and not self._filled):
            raise TensorError(f"get() before put() on the cache of layer {self.layer}")
        key, (dv, heads) = stored.heads[self.layer]
        keys, values = _window(stored.keys[self.layer], *key, window), stored.values[self.layer]
        if not stored.permuted_v:
            return keys, _window(values, dv, heads, window), self.feeds.mask
        row, first = values.stride(1), values.dtype.row_size(window.begin)
        visible = values.view(first, window.size, row, dv, row * dv, heads)
        return keys, visible, self.feeds.mask

    @property
    def spreads(self) -> bool:
        return self.stored.dtype.is_quantized

    def spread(self, x: Tensor) -> Tensor:
        return spread(x, self.feeds.hadamard(spread_width(x.dim(0)))) if self.spreads else x

    def by_distance(self, fill: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        """An input I32 [m · n] that follows from how far each of the m cells that attention reads
        lies behind each of n tokens, for layers that `caches()` declares as `relative`.

        Args:
            fill: distances int32 [n, m] → as many numbers. Those of cells that a token does not see
                may be anything.

        Raises:
            TensorError: the layer is not declared so.
        """
        return self.feeds.by_distance(self.layer, fill)


class SharedLayer(LayerMemory):
    """A layer that reads what an earlier one has stored, in a graph being recorded."""

    def __init__(self, layer: int, source: LayerCache):
        super().__init__(layer, source.rope, source.max_bias)
        self.source, self.shares = source, source.layer

    def put(self, k: Tensor, v: Tensor) -> None:
        raise TensorError(
            f"put() on the cache of layer {self.layer}, which caches() declares to share the keys "
            f"and values of layer {self.shares}: nn.attention(q, None, None, cache, …)"
        )

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.source.get()

    @property
    def spreads(self) -> bool:
        return self.source.spreads

    def spread(self, x: Tensor) -> Tensor:
        return self.source.spread(x)


def scatter(width: int, total: int, cells: np.ndarray) -> np.ndarray:
    """Row indices in [total cells, width] of all numbers of these cells, int64 [cells · width]."""
    return (np.arange(width) * total + cells[:, None]).reshape(-1)


@functools.cache
def hadamard(width: int) -> np.ndarray:
    """The matrix of Hadamard and Sylvester divided by √width, float32 [width, width], for a power
    of two: it is symmetric and its own inverse."""
    rows = np.arange(width)
    odd = sum((rows[:, None] & rows) >> bit & 1 for bit in range(width.bit_length())) % 2
    return ((1 - 2 * odd) / np.sqrt(width)).astype(np.float32)


def spread_width(width: int) -> int:
    """The largest power of two, of at most `SPREAD`, that divides the width of a head."""
    return min(width & -width, SPREAD)


def spread(x: Tensor, matrix: Tensor) -> Tensor:
    """x [d, heads, n], groups of numbers of each head multiplied by `hadamard`'s matrix. Products
    of two heads stay the same, and a number that is far larger than the others becomes many: so
    blocks of few bits lose less (arXiv 2404.00456). The same again gives x."""
    return matrix.mulmat(x.contiguous(matrix.dim(0), -1)).reshape(x.dim(0), x.dim(1), -1)


def _window(stored: Tensor, d: int, heads: int, window: Window) -> Tensor:
    """The window of [d · heads, cells] seen as [d, heads, window]."""
    row = stored.stride(1)
    return stored.view(window.begin * row, d, stored.dtype.row_size(d), heads, row, window.size)


def _need_kv_type(dtype: DType, backend: Backend) -> None:
    name = dtype.name.lower()
    if dtype not in KV_TYPES:
        supported = ", ".join(t.name.lower() for t in KV_TYPES)
        raise Unsupported(f"kv_type {name} is unsupported; supported: {supported}")
    if dtype.is_quantized and not backend.flash_attention:
        raise Unsupported(f"kv_type {name} needs flash attention; use kv_type 'f16' without it")
