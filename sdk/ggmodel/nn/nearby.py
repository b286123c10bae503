"""Attention of a sound's encoder: rows see those nearby, and a part of the score tells how far away
they are (arXiv 1901.02860)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ml import Context, DType, Tensor

NEARBY_MOST = 64  # rows before or behind one; published encoders see 12, half a second
_HIDDEN = -1e9  # added to the scores of rows that are not seen


@dataclass(frozen=True)
class Nearby:
    """The rows among n that a row sees: `past` ones before it, itself, and `ahead` ones behind it.

    Rows are cut into blocks, each of which sees itself and its neighbours: time and memory grow
    with n, not with its square.

    Attributes:
        n: rows.
        cap: bounds scores by cap · tanh(score / cap).
    """

    n: int
    past: int
    ahead: int
    cap: float

    @property
    def distances(self) -> int:
        """How many distances there are."""
        return self.past + 1 + self.ahead

    @property
    def _block(self) -> int:
        return max(self.past, self.ahead, 1)

    @property
    def _blocks(self) -> int:
        return -(-self.n // self._block)

    @property
    def _seen(self) -> int:
        """Rows of a block and of those beside it."""
        return self._block * (3 if self.ahead else 2)

    def timing(self, ctx: Context, width: int) -> Tensor:
        """Sines and cosines of the distances, the largest past one first: F32 [width, distances].
        Half of the frequencies, from 1 to 1e-4, are sines' (arXiv 1706.03762)."""
        half = width // 2
        rates = np.exp(np.arange(half) * (-np.log(1e4) / max(half - 1, 1)))
        angles = np.arange(self.past, -self.ahead - 1, -1)[:, None] * rates
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
        return ctx.constant(table, DType.F32)

    def mask(self, ctx: Context) -> Tensor:
        """The numbers added to scores, for `attend`: F32 [seen, block, blocks]."""
        size, blocks = self._block, self._blocks
        rows = np.arange(size * blocks).reshape(blocks, size, 1)
        keys = np.arange(self._seen) - size + np.arange(blocks)[:, None, None] * size
        far = (keys < rows - self.past) | (keys > rows + self.ahead)
        hidden = np.where(far | (keys < 0) | (keys >= self.n), _HIDDEN, 0).astype(np.float32)
        return ctx.constant(hidden, DType.F32)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, relative: Tensor, mask: Tensor) -> Tensor:
        """softmax(cap(K·q + R·q)) · V for each head.

        Args:
            q, k, v: [head dim, heads, n] F32; the scale is in q.
            relative: R [head dim, heads, distances], in the order of `timing`.
            mask: that of `mask`.

        Returns:
            [head dim · heads, n] F32.
        """
        d, heads, size, blocks = q.dim(0), q.dim(1), self._block, self._blocks
        rows = q.permute(0, 2, 1).contiguous().pad(0, size * blocks - self.n)
        rows = rows.reshape(d, size, blocks, heads)
        scores = self._beside(k).mulmat(rows) + self._by_distance(rows, relative)
        scores = scores.scale(1 / self.cap).tanh().scale(self.cap)
        values = self._beside(v).permute(1, 0, 2, 3).contiguous()
        y = values.mulmat((scores + mask).softmax())
        y = y.permute(0, 2, 3, 1).contiguous(d * heads, size * blocks)
        return y if size * blocks == self.n else y.slice(1, 0, self.n).contiguous()

    def _beside(self, x: Tensor) -> Tensor:
        """[head dim, heads, n] → [head dim, seen, blocks, heads]: for each block its rows and those
        of its neighbours, zeros beyond the ends."""
        d, heads, size, blocks = x.dim(0), x.dim(1), self._block, self._blocks
        beside = self._seen // size
        total = (blocks + beside - 1) * size
        # The zeros that come first are rolled there from the end.
        x = x.permute(0, 2, 1).contiguous().pad(0, total - self.n).roll(0, size)
        x = x.reshape(d, size, blocks + beside - 1, heads)
        first, *others = (x.slice(2, i, i + blocks) for i in range(beside))
        return first.stack(1, *others)

    def _by_distance(self, rows: Tensor, relative: Tensor) -> Tensor:
        """Scores of distances, each in the place of its key: [seen, block, blocks, heads]."""
        d, size, blocks, heads = rows.ne
        relative = relative.permute(0, 2, 1).contiguous()
        scores = relative.mulmat(rows.reshape(d, size * blocks, heads))
        scores = scores.reshape(self.distances, size, blocks, heads)
        # Rows one longer than there are keys: reading them without the surplus moves row i by i.
        scores = scores.pad(self._seen + 1 - self.distances).roll(size - self.past)
        scores = scores.reshape((self._seen + 1) * size, blocks, heads)
        scores = scores.slice(0, 0, self._seen * size).contiguous()
        return scores.reshape(self._seen, size, blocks, heads)
