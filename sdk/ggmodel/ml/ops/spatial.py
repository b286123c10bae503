"""Convolutions, pooling and resampling of images: [width, height, channels, batch]."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ..node import Node, record
from ..table import F32, FULL, HALF, Layout, Operand, Result, Shape, define, need

if TYPE_CHECKING:
    from typing_extensions import Self


class SamplingMode(enum.IntEnum):
    """How `interpolate` finds values between pixels; the values are ggml's."""

    NEAREST = 0
    BILINEAR = 1


_KERNEL = Operand("kernel", HALF, F32, Layout.CONTIGUOUS)
_IMAGE = Operand("x", FULL, F32, Layout.CONTIGUOUS)


def _extent(n: int, k: int, stride: int, pad: int, dilation: int) -> int:
    need(stride > 0 and dilation > 0 and pad >= 0 and k > 0, "stride and dilation are ≥ 1, pad ≥ 0")
    length = (n + 2 * pad - dilation * (k - 1) - 1) // stride + 1
    need(length > 0, f"a kernel of {k} (dilation {dilation}) does not fit {n} + 2·{pad}")
    return length


@define("conv_2d", Operand("kernel", FULL, F32, Layout.CONTIGUOUS), _IMAGE)
def _conv_2d(
    w: Node, x: Node, stride: tuple[int, int], pad: tuple[int, int], dilation: tuple[int, int]
) -> Result:
    need(w.ne[2] == x.ne[2], f"the kernel reads {w.ne[2]} channels, the image has {x.ne[2]}")
    width, height = (_extent(x.ne[i], w.ne[i], stride[i], pad[i], dilation[i]) for i in (0, 1))
    return Result((width, height, w.ne[3], x.ne[3]), F32)


@define("im2col", _KERNEL, _IMAGE)
def _im2col(
    w: Node, x: Node, stride: tuple[int, int], pad: tuple[int, int], dilation: tuple[int, int]
) -> Result:
    need(w.ne[2] == x.ne[2], f"the kernel reads {w.ne[2]} channels, the image has {x.ne[2]}")
    width, height = (_extent(x.ne[i], w.ne[i], stride[i], pad[i], dilation[i]) for i in (0, 1))
    return Result((w.ne[0] * w.ne[1] * w.ne[2], width, height, x.ne[3]), F32)


@define("avg_pool_2d", _IMAGE)
def _avg_pool_2d(x: Node, k: int, s: int, p: float) -> Result:
    need(k > 0 and s > 0 and p >= 0, "kernel and stride are ≥ 1, padding ≥ 0")
    width, height = (int((x.ne[i] + 2 * p - k) / s) + 1 for i in (0, 1))
    need(width > 0 and height > 0, f"a pool of {k} does not fit {list(x.shape)}")
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

    def im2col(
        self, x: Node, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
    ) -> Self:
        """The patches of x [w, h, c, n] that kernel self [kw, kh, c, …] meets.

        Returns:
            F32 [kw·kh·c, w', h', n].
        """
        return record(self, "im2col", x, stride=(s0, s1), pad=(p0, p1), dilation=(d0, d1))

    def avg_pool_2d(self, k: int, s: int, p: float = 0) -> Self:
        """Means of k × k pixels at stride s with zero padding p, which counts in the mean."""
        return record(self, "avg_pool_2d", k=int(k), s=int(s), p=float(p))

    def interpolate(self, dims: Shape, mode: SamplingMode = SamplingMode.NEAREST) -> Self:
        """Resampled to `dims`, of which width and height may differ from the receiver's."""
        return record(self, "interpolate", ne=tuple(dims), mode=SamplingMode(mode))
