"""Ops on images and sounds: convolutions, pooling, resampling, windows.

Images are [width, height, channels, batch], sounds [length, channels, batch]. Windows come with
relative positions, rolling and reflection.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ..arguments import integer
from ..graph import record
from ..node import Node
from ..table import F16, F32, FULL, HALF, Layout, Operand, Result, Shape, define, dense, need, pad4

if TYPE_CHECKING:
    from typing_extensions import Self

Pair = tuple[int, int]  # along width, height
Triple = tuple[int, int, int]  # and along depth


class SamplingMode(enum.IntEnum):
    """The values of `interpolate` between pixels; the numbers are ggml's."""

    NEAREST = 0
    BILINEAR = 1


_IMAGE = dense("x")


_LIMIT = 1 << 30  # ggml keeps and doubles them in 32 bits


def _extent(n: int, k: int, stride: int, pad: int, dilation: int) -> int:
    need(stride > 0 and dilation > 0 and pad >= 0 and k > 0, "stride and dilation are ≥ 1, pad ≥ 0")
    need(max(stride, pad, dilation) < _LIMIT, f"stride, pad and dilation are below {_LIMIT}")
    length = (n + 2 * pad - dilation * (k - 1) - 1) // stride + 1
    need(length > 0, f"a kernel of {k} (dilation {dilation}) does not fit {n} + 2·{pad}")
    return length


@define("conv_2d", dense("kernel"), _IMAGE)
def _conv_2d(w: Node, x: Node, stride: Pair, pad: Pair, dilation: Pair) -> Result:
    need(w.ne[2] == x.ne[2], f"the kernel reads {w.ne[2]} channels, the image has {x.ne[2]}")
    width, height = (_extent(x.ne[i], w.ne[i], stride[i], pad[i], dilation[i]) for i in (0, 1))
    return Result((width, height, w.ne[3], x.ne[3]), F32)


@define("conv_3d", dense("kernel"), _IMAGE)
def _conv_3d(
    w: Node, x: Node, channels: int, stride: Triple, pad: Triple, dilation: Triple
) -> Result:
    need(
        channels > 0 and w.ne[3] % channels == 0 and x.ne[3] % channels == 0,
        f"{channels} channels do not divide dims 3: {w.ne[3]} of the kernel, {x.ne[3]} of x",
    )
    width, height, depth = (
        _extent(x.ne[i], w.ne[i], stride[i], pad[i], dilation[i]) for i in range(3)
    )
    volumes = w.ne[3] // channels * (x.ne[3] // channels)
    return Result((width, height, depth, volumes), F32)


@define("conv_1d", dense("kernel"), _IMAGE, own=True)
def _conv_1d(w: Node, x: Node, stride: int, pad: int, dilation: int) -> Result:
    need(w.ne[3] == x.ne[3] == 1, "the kernel is [k, in, out], x [length, in, batch]")
    need(w.ne[1] == x.ne[1], f"the kernel reads {w.ne[1]} channels, x has {x.ne[1]}")
    return Result((_extent(x.ne[0], w.ne[0], stride, pad, dilation), w.ne[2], x.ne[2], 1), F32)


@define("depthwise_conv_1d", dense("kernel"), _IMAGE, own=True)
def _depthwise_conv_1d(w: Node, x: Node, stride: int, pad: int, dilation: int) -> Result:
    need(w.ne[1] == w.ne[3] == x.ne[3] == 1, "the kernel is [k, 1, c], x [length, c, batch]")
    need(w.ne[2] == x.ne[1], f"the kernel has {w.ne[2]} channels, x has {x.ne[1]}")
    return Result((_extent(x.ne[0], w.ne[0], stride, pad, dilation), *x.ne[1:]), F32)


@define("depthwise_conv_2d", dense("kernel"), _IMAGE, own=True)
def _depthwise_conv_2d(w: Node, x: Node, stride: Pair, pad: Pair, dilation: Pair) -> Result:
    need(w.ne[2] == 1, "the kernel is [kw, kh, 1, c]")
    need(w.ne[3] == x.ne[2], f"the kernel has {w.ne[3]} channels, the image has {x.ne[2]}")
    width, height = (_extent(x.ne[i], w.ne[i], stride[i], pad[i], dilation[i]) for i in (0, 1))
    return Result((width, height, *x.ne[2:]), F32)


def _spread(n: int, k: int, stride: int) -> int:
    need(0 < stride < _LIMIT, f"the stride is 1 to {_LIMIT}")
    need(n > 0 and k > 0, "kernel and x have elements")
    return (n - 1) * stride + k


@define("conv_transpose_1d", dense("kernel"), _IMAGE, own=True)
def _conv_transpose_1d(w: Node, x: Node, stride: int) -> Result:
    need(w.ne[3] == 1 and x.ne[2:] == (1, 1), "the kernel is [k, out, in], x [length, in]")
    need(w.ne[2] == x.ne[1], f"the kernel reads {w.ne[2]} channels, x has {x.ne[1]}")
    return Result((_spread(x.ne[0], w.ne[0], stride), w.ne[1], 1, 1), F32)


@define("conv_transpose_2d", dense("kernel"), _IMAGE, own=True)
def _conv_transpose_2d(w: Node, x: Node, stride: int) -> Result:
    need(x.ne[3] == 1, "ggml computes one image alone: [w, h, in]")
    need(w.ne[3] == x.ne[2], f"the kernel reads {w.ne[3]} channels, the image has {x.ne[2]}")
    width, height = (_spread(x.ne[i], w.ne[i], stride) for i in (0, 1))
    return Result((width, height, w.ne[2], 1), F32)


@define("group_norm", dense("x"), own=True)
def _group_norm(x: Node, groups: int, eps: float) -> Result:
    need(groups > 0 and x.ne[2] % groups == 0, f"{groups} groups do not divide {x.ne[2]} channels")
    return Result(x.ne, F32)


@define("im2col", dense("kernel", HALF), _IMAGE)
def _im2col(w: Node, x: Node, **places: Pair) -> Result:
    width, height, _, batch = _conv_2d(w, x, **places).ne
    return Result((w.ne[0] * w.ne[1] * w.ne[2], width, height, batch), F32)


@define("avg_pool_2d", _IMAGE)
def _avg_pool_2d(x: Node, k: int, s: int, p: float) -> Result:
    least = min(x.ne[:2])
    need(k > 0 and 0 < s < _LIMIT, f"kernel and stride are ≥ 1, the stride below {_LIMIT}")
    need(0 <= p <= least, f"padding is 0 to {least}, the smaller side of the image")
    need(k <= least + 2 * p, f"a pool of {k} does not fit {list(x.shape)}")
    width, height = (int((x.ne[i] + 2 * p - k) / s) + 1 for i in (0, 1))
    return Result((width, height, x.ne[2], x.ne[3]), F32)


@define("interpolate", _IMAGE)
def _interpolate(x: Node, ne: Shape, mode: SamplingMode) -> Result:
    need(all(n > 0 for n in ne), "target dims are ≥ 1")
    need(ne[2:] == x.ne[2:], "channels and batch cannot be interpolated")
    return Result(ne, F32)


class Spatial(Node):
    """Convolutions, pooling, resampling."""

    __slots__ = ()

    def conv_2d(
        self, x: Node, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
    ) -> Self:
        """Kernel self [kw, kh, in, out] over x [w, h, in, n] → [w', h', out, n] F32.

        s, p, d: stride, zero padding and dilation along width (0) and height (1).
        """
        return record(self, "conv_2d", x, stride=(s0, s1), pad=(p0, p1), dilation=(d0, d1))

    def conv_3d(
        self,
        x: Node,
        c: int,
        s0: int = 1,
        s1: int = 1,
        s2: int = 1,
        p0: int = 0,
        p1: int = 0,
        p2: int = 0,
        d0: int = 1,
        d1: int = 1,
        d2: int = 1,
    ) -> Self:
        """Kernel self [kw, kh, kd, c·out] over x [w, h, d, c·n] → [w', h', d', out·n] F32.

        c: input channels. s, p, d: stride, zero padding and dilation along width (0), height (1)
        and depth (2).
        """
        return record(
            self,
            "conv_3d",
            x,
            channels=c,
            stride=(s0, s1, s2),
            pad=(p0, p1, p2),
            dilation=(d0, d1, d2),
        )

    def conv_1d(self, x: Node, s: int = 1, p: int = 0, d: int = 1) -> Self:
        """Kernel self [k, in, out] over x [length, in, n] → [length', out, n] F32.

        s, p, d: stride, zero padding at both ends, dilation.
        """
        return record(self, "conv_1d", x, stride=s, pad=p, dilation=d)

    def depthwise_conv_1d(self, x: Node, s: int = 1, p: int = 0, d: int = 1) -> Self:
        """A kernel for each channel, self [k, 1, c] over x [length, c, n] → [length', c, n] F32.

        s, p, d: as for `conv_1d`. For short causal convolutions, see `ssm_conv`.
        """
        return record(self, "depthwise_conv_1d", x, stride=s, pad=p, dilation=d)

    def depthwise_conv_2d(
        self, x: Node, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
    ) -> Self:
        """A kernel for each channel, self [kw, kh, 1, c] over x [w, h, c, n] → [w', h', c, n] F32.

        s, p, d: as for `conv_2d`.
        """
        return record(
            self, "depthwise_conv_2d", x, stride=(s0, s1), pad=(p0, p1), dilation=(d0, d1)
        )

    def conv_transpose_1d(self, x: Node, s: int = 1) -> Self:
        """Transposed convolution of stride s, kernel self [k, out, in] over x [length, in] →
        [(length − 1) · s + k, out] F32; padding crops the result, with `slice`."""
        return record(self, "conv_transpose_1d", x, stride=s)

    def conv_transpose_2d(self, x: Node, s: int = 1) -> Self:
        """Transposed convolution of stride s, kernel self [kw, kh, out, in] over x [w, h, in] →
        [(w − 1) · s + kw, (h − 1) · s + kh, out] F32."""
        return record(self, "conv_transpose_2d", x, stride=s)

    def group_norm(self, groups: int, eps: float = 1e-5) -> Self:
        """(x − mean) / √(variance + eps) over all pixels of a group of neighbouring channels:
        [w, h, c, n] → [w, h, c, n], c / groups channels a group."""
        return record(self, "group_norm", groups=groups, eps=eps)

    def im2col(
        self, x: Node, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
    ) -> Self:
        """The patches of x [w, h, c, n] that kernel self [kw, kh, c, …] meets →
        [kw·kh·c, w', h', n] F32.

        s, p, d: as for `conv_2d`.
        """
        return record(self, "im2col", x, stride=(s0, s1), pad=(p0, p1), dilation=(d0, d1))

    def avg_pool_2d(self, k: int, s: int, p: float = 0.0) -> Self:
        """Means of k × k pixels at stride s: [w, h, …] → [w', h', …], w' = ⌊(w + 2p − k) / s⌋ + 1;
        the zero padding p counts in the mean."""
        return record(self, "avg_pool_2d", k=k, s=s, p=p)

    def interpolate(self, dims: Shape, mode: SamplingMode = SamplingMode.NEAREST) -> Self:
        """Resampled: [w, h, c, n] → `dims` [w', h', c, n]."""
        return record(self, "interpolate", ne=pad4(map(integer, dims)), mode=SamplingMode(mode))


@define("window_partition", dense("x"), own=True)
def _window_partition(x: Node, size: int) -> Result:
    need(0 < size < _LIMIT, f"windows have 1 to {_LIMIT} pixels a side")
    need(x.ne[3] == 1, "x is one picture: [c, width, height]")
    across, down = (-(-x.ne[i] // size) for i in (1, 2))
    return Result((x.ne[0], size, size, across * down), F32)


@define("window_unpartition", dense("x"), own=True)
def _window_unpartition(x: Node, width: int, height: int) -> Result:
    size = x.ne[1]
    need(size > 0 and x.ne[2] == size, "x has square windows: [c, size, size, windows]")
    need(
        0 < width < _LIMIT and 0 < height < _LIMIT,
        f"width and height are 1 to {_LIMIT}",
    )
    across, down = -(-width // size), -(-height // size)
    need(
        across * down == x.ne[3],
        f"{width} × {height} has {across * down} windows of {size}, not {x.ne[3]}",
    )
    return Result((x.ne[0], width, height, 1), F32)


@define("relative_positions", Operand("table", frozenset({F16}), F16, Layout.CONTIGUOUS), own=True)
def _relative_positions(x: Node) -> Result:
    c, rows = x.ne[:2]
    need(x.ne[2:] == (1, 1) and rows % 2 == 1, "the table is [c, 2n − 1]")
    n = (rows + 1) // 2
    return Result((c, n, n, 1), F16)


@define("add_relative_positions", dense("x"), dense("pw"), dense("ph"), own=True)
def _add_relative_positions(x: Node, pw: Node, ph: Node) -> Result:
    need(pw.ne == ph.ne, f"pw {list(pw.shape)} and ph {list(ph.shape)} differ")
    side, width, height, heads = pw.ne
    need(
        x.ne == (side * side, width * height, heads, 1),
        f"with pw {list(pw.shape)} x is {[side * side, width * height, heads]}",
    )
    return Result(x.ne, F32)


@define("roll", Operand("x", FULL, F32, Layout.CONTIGUOUS), own=True)
def _roll(x: Node, shifts: Shape) -> Result:
    need(x.n_elements > 0, "x has elements")
    return Result(x.ne, F32)


@define("pad_reflect", dense("x"), own=True)
def _pad_reflect(x: Node, before: int, after: int) -> Result:
    need(
        0 <= before < x.ne[0] and 0 <= after < x.ne[0],
        f"a row of {x.ne[0]} has at most {x.ne[0] - 1} elements to mirror at an end",
    )
    return Result((x.ne[0] + before + after, *x.ne[1:]), F32)


class Windows(Node):
    """Windows, relative positions, rolling, reflection; results are F32 but for the look-up."""

    __slots__ = ()

    def window_partition(self, size: int) -> Self:
        """Square windows of a picture, row after row, zeros beyond its edges: [c, w, h] →
        [c, size, size, ⌈w / size⌉ · ⌈h / size⌉]."""
        return record(self, "window_partition", size=size)

    def window_unpartition(self, width: int, height: int) -> Self:
        """The picture of such windows: [c, size, size, n] → [c, width, height]."""
        return record(self, "window_unpartition", width=width, height=height)

    def relative_positions(self) -> Self:
        """Row n − 1 − k + q of a table for query q and key k: [c, 2n − 1] → [c, n (k), n (q)], both
        F16, to which the table is rounded."""
        return record(self, "relative_positions")

    def add_relative_positions(self, pw: Node, ph: Node) -> Self:
        """Scores plus those of columns and rows: self [k · k, qw · qh, heads], whose dim 0 is a
        k × k picture, with pw and ph [k, qw, qh, heads] → self's shape."""
        return record(self, "add_relative_positions", pw, ph)

    def roll(self, *shifts: int) -> Self:
        """Element i of dim d goes to (i + shifts[d]) mod n: […] → […]; missing shifts are 0."""
        sizes = zip((*shifts, 0, 0, 0, 0)[:4], self.ne, strict=True)
        return record(self, "roll", shifts=tuple(s % n if n else 0 for s, n in sizes))

    def pad_reflect(self, before: int, after: int) -> Self:
        """Dim 0 mirrored at its ends, which are not repeated: [n, …] → [before + n + after, …]."""
        return record(self, "pad_reflect", before=before, after=after)
