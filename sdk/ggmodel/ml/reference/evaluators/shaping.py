"""Views, copies, rows by index, and ops on images and sounds.

Views share memory and compute nothing. Images are [batch, channels, height, width].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.spatial import SamplingMode
from ..elements import EVALUATORS, Elements, computes, encode, evaluates, in_range


def _shared(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    """The result lies in the operand's memory."""


for _name in ("reshape", "view", "permute"):
    EVALUATORS[_name] = _shared


def _moved(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    out.raw[...] = x[0].raw


for _name in ("contiguous", "duplicate"):
    EVALUATORS[_name] = _moved


@evaluates("repeat")
def _repeat(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    repeats = [n // m for n, m in zip(out.raw.shape, x[0].raw.shape, strict=True)]
    out.raw[...] = np.tile(x[0].raw, repeats)


@evaluates("concat")
def _concat(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    out.raw[...] = np.concatenate([e.raw for e in x], 3 - a["dim"])


@computes("pad")
def _pad(x: np.ndarray, amounts: tuple[int, ...]) -> np.ndarray:
    return np.pad(x, [(0, n) for n in reversed(amounts)])


@evaluates("copy")
def _copy(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    """Element by element in memory order; `out` is the memory of the destination."""
    source: Elements = x[0]
    if source.dtype == out.dtype:
        out.raw[...] = source.raw.reshape(out.raw.shape)
    else:
        out.write(source.read().reshape(out.shape))


@evaluates("set")
def _set(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    _moved(out, x, a)
    _put(out, x, a)


@evaluates("set_inplace")
def _put(out: Elements, x: tuple, a: dict[str, Any]) -> None:
    """Writes the second operand into `out` [contiguous F32] at a byte offset and strides."""
    source: np.ndarray = x[1].raw
    strides = (*reversed(a["nb"]), out.raw.itemsize)
    flat = out.raw.reshape(-1)  # no copy: the receiver is contiguous
    window = np.ndarray(source.shape, flat.dtype, flat, a["offset"], strides)
    window[...] = source


@computes("rows")
def rows(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """table [b, a, n, d], ids [1, b, a, m] → [b, a, m, d]."""
    b, a = np.ogrid[: table.shape[0], : table.shape[1]]
    return table[b[..., None], a[..., None], in_range(ids[0], table.shape[2])]


@evaluates("set_rows")
def _set_rows(out: Elements, x: tuple, attrs: dict[str, Any]) -> None:
    """Writes src [b, a, m, d] into `out`, the memory of the destination [b, a, n, d]; ids
    [1, b', a', m] are repeated over b and a."""
    src, ids = encode(x[1].read(), out.dtype), in_range(x[2].read()[0], out.shape[2])
    for b in range(out.shape[0]):
        for a in range(out.shape[1]):
            out.raw[b, a, ids[b % ids.shape[0], a % ids.shape[1]]] = src[b, a]


@computes("argsort")
def argsort(x: np.ndarray, descending: bool = False) -> np.ndarray:
    """Stable: equal values keep their order."""
    return np.argsort(-x if descending else x, axis=-1, kind="stable")


@computes("argmax")
def argmax(x: np.ndarray) -> np.ndarray:
    """[1, 1, n, d] → [1, 1, 1, n]; the last of equals, as in ggml."""
    last = x.shape[-1] - 1
    return (last - x[..., ::-1].argmax(-1))[:, :, None]


@computes("diag")
def diag(x: np.ndarray) -> np.ndarray:
    """[…, 1, n] → […, n, n]."""
    return np.where(np.eye(x.shape[-1], dtype=bool), x, 0)


@computes("tri")
def tri(x: np.ndarray, kind: int) -> np.ndarray:
    """0 upper with diagonal, 1 upper, 2 lower with diagonal, 3 lower."""
    return np.triu(x, kind) if kind < 2 else np.tril(x, 2 - kind)


@computes("arange")
def arange(start: float, stop: float, step: float) -> np.ndarray:
    count = int(np.ceil((stop - start) / step))
    return (start + step * np.arange(count, dtype=np.float64))[None, None, None]


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
    windows = patches(x, (w.shape[3], w.shape[2]), stride, dilation)
    return windows.reshape(*windows.shape[:3], -1)


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
    windows = patches(x, (w.shape[3], w.shape[2]), stride, dilation)
    return np.einsum("nhwcij,cij->nchw", windows, w[:, 0])


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


@computes("window_partition")
def window_partition(x: np.ndarray, size: int) -> np.ndarray:
    """x [1, height, width, c] → [windows, size, size, c]."""
    height, width, c = x.shape[1:]
    x = np.pad(x[0], [(0, -height % size), (0, -width % size), (0, 0)])
    x = x.reshape(x.shape[0] // size, size, x.shape[1] // size, size, c)
    return x.swapaxes(1, 2).reshape(-1, size, size, c)


@computes("window_unpartition")
def window_unpartition(x: np.ndarray, width: int, height: int) -> np.ndarray:
    """x [windows, size, size, c] → [1, height, width, c]."""
    size, c = x.shape[1], x.shape[3]
    x = x.reshape(-(-height // size), -(-width // size), size, size, c).swapaxes(1, 2)
    return x.reshape(1, x.shape[0] * size, -1, c)[:, :height, :width]


@computes("relative_positions")
def relative_positions(x: np.ndarray) -> np.ndarray:
    """x [1, 1, 2n − 1, c] → [1, n, n, c]."""
    n = (x.shape[2] + 1) // 2
    return x[0, :, n - 1 - np.arange(n) + np.arange(n)[:, None]].swapaxes(0, 2).swapaxes(1, 2)


@computes("add_relative_positions")
def add_relative_positions(x: np.ndarray, pw: np.ndarray, ph: np.ndarray) -> np.ndarray:
    """x [1, heads, queries, k · k], pw and ph [heads, rows, columns, k]."""
    both = ph[..., :, None] + pw[..., None, :]
    return x + both.reshape(x.shape)


@computes("roll")
def roll(x: np.ndarray, shifts: tuple[int, ...]) -> np.ndarray:
    return np.roll(x, shifts[::-1], (0, 1, 2, 3))


@computes("pad_reflect")
def pad_reflect(x: np.ndarray, before: int, after: int) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, 0), (0, 0), (before, after)], "reflect")
