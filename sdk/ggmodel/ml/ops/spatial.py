"""Convolutions, pooling and resampling of images [width, height, channels, batch] and of sounds
[length, channels, batch]."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ..arguments import integer
from ..graph import record
from ..node import Node
from ..table import F32, HALF, Result, Shape, define, dense, need, pad4

if TYPE_CHECKING:
    from typing_extensions import Self


Pair = tuple[int, int]  # along width, height
Triple = tuple[int, int, int]  # and along depth


class SamplingMode(enum.IntEnum):
    """The values of `interpolate` between pixels; the numbers are ggml's."""

    NEAREST = 0
    BILINEAR = 1


_IMAGE = dense("x")


_LIMIT = 1 << 30  # ggml doubles them in 32 bits


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
