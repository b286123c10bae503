"""Convolutions, pooling and resampling of images [batch, channels, height, width]."""

from __future__ import annotations

import numpy as np

from ...ops.spatial import SamplingMode
from .table import computes

Pair = tuple[int, int]  # along width, along height
Triple = tuple[int, int, int]  # and along depth


def patches(x: np.ndarray, kernel: Pair, stride: Pair, dilation: Pair) -> np.ndarray:
    """The kernel's window at each place: [batch, height', width', channels, kh, kw]."""

    def reach(n: int, i: int) -> np.ndarray:
        steps = (n - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        return np.arange(steps)[:, None] * stride[i] + np.arange(kernel[i]) * dilation[i]

    rows, columns = reach(x.shape[2], 1), reach(x.shape[3], 0)
    met = x[:, :, rows][..., columns]  # [batch, channels, height', kh, width', kw]
    return met.transpose(0, 2, 4, 1, 3, 5)


def _met(w: np.ndarray, x: np.ndarray, stride: Pair, pad: Pair, dilation: Pair) -> np.ndarray:
    """[batch, height', width', channels · kh · kw] of zero-padded images."""
    x = np.pad(x, [(0, 0), (0, 0), (pad[1], pad[1]), (pad[0], pad[0])])
    found = patches(x, (w.shape[3], w.shape[2]), stride, dilation)
    return found.reshape(*found.shape[:3], -1)


@computes("im2col")
def im2col(w: np.ndarray, x: np.ndarray, stride: Pair, pad: Pair, dilation: Pair) -> np.ndarray:
    return _met(w, x, stride, pad, dilation)


@computes("conv_2d")
def conv_2d(w: np.ndarray, x: np.ndarray, stride: Pair, pad: Pair, dilation: Pair) -> np.ndarray:
    """w [out, channels, kh, kw] → [batch, out, height', width']."""
    product = _met(w, x, stride, pad, dilation) @ w.reshape(len(w), -1).T
    return product.transpose(0, 3, 1, 2)


@computes("conv_3d")
def conv_3d(
    w: np.ndarray, x: np.ndarray, channels: int, stride: Triple, pad: Triple, dilation: Triple
) -> np.ndarray:
    """w [out · channels, kd, kh, kw] over x [batch · channels, depth, height, width] → [batch ·
    out, …]: a sum of products over the offsets in the kernel."""
    x = np.pad(x, [(0, 0), *((n, n) for n in reversed(pad))])
    x, w = (a.reshape(-1, channels, *a.shape[1:]) for a in (x, w))
    out = 0
    for offset in np.ndindex(w.shape[2:]):
        met = x
        for axis, k in enumerate(offset, 2):
            i = 4 - axis  # axes go from depth to width, attributes the other way
            last = met.shape[axis] - dilation[i] * (w.shape[axis] - 1 - k)
            met = met.take(np.arange(k * dilation[i], last, stride[i]), axis)
        out = out + np.einsum("oc,ncdhw->nodhw", w[(..., *offset)], met)
    return np.asarray(out).reshape(-1, *np.shape(out)[2:])


@computes("conv_1d")
def conv_1d(w: np.ndarray, x: np.ndarray, stride: int, pad: int, dilation: int) -> np.ndarray:
    """w [1, out, channels, k] over x [1, batch, channels, length] → [1, batch, out, length']."""
    places = (stride, 1), (pad, 0), (dilation, 1)
    return conv_2d(w[0][:, :, None], x[0][:, :, None], *places)[None, :, :, 0]


@computes("depthwise_conv_1d")
def depthwise_conv_1d(
    w: np.ndarray, x: np.ndarray, stride: int, pad: int, dilation: int
) -> np.ndarray:
    """w [1, channels, 1, k] over x [1, batch, channels, length]."""
    places = (stride, 1), (pad, 0), (dilation, 1)
    return depthwise_conv_2d(w[0][:, :, None], x[0][:, :, None], *places)[None, :, :, 0]


@computes("depthwise_conv_2d")
def depthwise_conv_2d(
    w: np.ndarray, x: np.ndarray, stride: Pair, pad: Pair, dilation: Pair
) -> np.ndarray:
    """w [channels, 1, kh, kw] over x [batch, channels, height, width]."""
    x = np.pad(x, [(0, 0), (0, 0), (pad[1], pad[1]), (pad[0], pad[0])])
    found = patches(x, (w.shape[3], w.shape[2]), stride, dilation)
    return np.einsum("nhwcij,cij->nchw", found, w[:, 0])


@computes("conv_transpose_1d")
def conv_transpose_1d(w: np.ndarray, x: np.ndarray, stride: int) -> np.ndarray:
    """w [1, in, out, k] over x [1, 1, in, length] → [1, 1, out, length']."""
    return _scattered(w[0][:, :, None], x[0][:, :, None], (stride, 1))[None, :, :, 0]


@computes("conv_transpose_2d")
def conv_transpose_2d(w: np.ndarray, x: np.ndarray, stride: int) -> np.ndarray:
    """w [in, out, kh, kw] over x [batch, in, height, width] → [batch, out, height', width']."""
    return _scattered(w, x, (stride, stride))


def _scattered(w: np.ndarray, x: np.ndarray, stride: Pair) -> np.ndarray:
    """Each pixel adds its kernel where it stands in the result."""
    (height, width), (kh, kw), (across, down) = x.shape[2:], w.shape[2:], stride
    out = np.zeros((len(x), w.shape[1], (height - 1) * down + kh, (width - 1) * across + kw))
    for i, j in np.ndindex(kh, kw):
        place = (slice(i, i + (height - 1) * down + 1, down),
                 slice(j, j + (width - 1) * across + 1, across))  # fmt: skip
        out[(slice(None), slice(None), *place)] += np.einsum("io,nihw->nohw", w[:, :, i, j], x)
    return out


@computes("group_norm")
def group_norm(x: np.ndarray, groups: int, eps: float) -> np.ndarray:
    grouped = x.reshape(len(x), groups, -1)
    grouped = grouped - grouped.mean(-1, keepdims=True)
    return (grouped / np.sqrt((grouped**2).mean(-1, keepdims=True) + eps)).reshape(x.shape)


@computes("avg_pool_2d")
def avg_pool_2d(x: np.ndarray, k: int, s: int, p: float) -> np.ndarray:
    """Means of k × k pixels; the padding counts as zeros. If it is fractional, only whole pixels
    precede the image, as in ggml."""

    def padding(n: int) -> tuple[int, int]:
        places = int((n + 2 * p - k) / s) + 1
        return int(p), max(0, (places - 1) * s + k - int(p) - n)

    height, width = x.shape[2:]
    padded = np.pad(x, [(0, 0), (0, 0), padding(height), padding(width)])
    places = [int((n + 2 * p - k) / s) + 1 for n in (height, width)]
    means = patches(padded, (k, k), (s, s), (1, 1)).mean((-2, -1)).transpose(0, 3, 1, 2)
    return means[:, :, : places[0], : places[1]]


@computes("interpolate")
def interpolate(x: np.ndarray, ne: tuple[int, ...], mode: SamplingMode) -> np.ndarray:
    """Pixel centres lie at i + ½; beyond the outermost pixels their values continue."""
    for axis, target in ((2, ne[1]), (3, ne[0])):
        n = x.shape[axis]
        if mode is SamplingMode.NEAREST:
            x = x.take(np.arange(target) * n // target, axis)
            continue
        at = np.clip((np.arange(target) + 0.5) * n / target - 0.5, 0, n - 1)
        lo = np.floor(at).astype(int)
        share = (at - lo).reshape(-1, *[1] * (3 - axis))
        x = x.take(lo, axis) * (1 - share) + x.take(np.minimum(lo + 1, n - 1), axis) * share
    return x
