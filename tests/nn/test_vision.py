"""Blocks of vision towers: against the same in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ggmodel import Tensor, nn
from ggmodel.errors import ConfigError, ImageError
from ggmodel.gguf_file import MemorySource
from ggmodel.image import smart_size, unfold
from ggmodel.ml import new_backend
from ggmodel.ml.context import Context
from ggmodel.workbench.golden import nmse

RANDOM = np.random.default_rng(7)


def computed(work: Callable[[Context], Tensor]) -> np.ndarray:
    backend = new_backend(MemorySource({"general.architecture": "none"}, {}), name="reference")
    with backend, backend.new_context() as ctx, ctx.trace():
        y = work(ctx)
        ctx.forward(y).compute(y)
        return y.floats()


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def test_rope_in_two_dims():
    d, heads, n = 8, 3, 5
    x, first, second = drawn(n, heads, d), np.arange(n), np.arange(n)[::-1] * 2

    def work(ctx: Context) -> Tensor:
        at = [ctx.input().from_ints(p.astype(np.int32)) for p in (first, second)]
        return nn.Rope2D(d, 100.0, 0.5)(ctx.input().from_floats(x), *at)

    frequencies = 100.0 ** (-np.arange(d // 4) / (d // 4))
    turned = [first[:, None] * frequencies, second[:, None] * 0.5 * frequencies]
    angles = np.concatenate(turned, 1)[:, None]
    pairs = x.astype(np.float64).reshape(n, heads, d // 2, 2)
    turning = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
    want = np.stack([turning.real, turning.imag], -1).reshape(x.shape)
    got = computed(work)
    assert nmse(got.reshape(want.shape), want) < 1e-12


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("lengths", [[12], [4, 4, 4], [4, 4, 3, 1], [1, 5, 5, 1]])
def test_rows_see_their_own_block(lengths: list[int], frames: int):
    d, heads, n = 4, 2, frames * sum(lengths)
    q, k, v = (drawn(n, heads, d) for _ in range(3))

    def work(ctx: Context) -> Tensor:
        given = (ctx.input().from_floats(x) for x in (q, k, v))
        return nn.attention_in_blocks(*given, lengths=lengths, scale=0.5, frames=frames)

    block = np.repeat(np.arange(frames * len(lengths)), lengths * frames)
    scores = 0.5 * np.einsum("ihd,jhd->hij", q, k)
    scores[:, block[:, None] != block] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    want = np.einsum("hij,jhd->ihd", weights, v)
    assert nmse(computed(work).reshape(want.shape), want) < 1e-12


def test_windows_take_each_cell_once_and_come_by_length():
    order, lengths = nn.vision_windows(5, 7, 3)
    assert sorted(order) == list(range(35))
    assert lengths == [9, 9, 6, 6, 3, 2]
    assert order[:9].tolist() == [0, 1, 2, 7, 8, 9, 14, 15, 16]
    assert order[-2:].tolist() == [27, 34], "the lower right corner"


@pytest.mark.parametrize("images", [1, 3])
def test_merged_patches(images: int):
    rows, columns, width, side = 4, 6, 5, 2
    x = drawn(images, rows * columns, width)
    got = computed(lambda ctx: nn.merge_patches(ctx.input().from_floats(x), columns, side))
    grid = x.reshape(images, rows // side, side, columns // side, side, width)
    want = grid.transpose(0, 1, 3, 2, 4, 5).reshape(images, -1, side * side * width)
    np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_unfolded_pixels_go_patch_by_patch():
    pixels = drawn(2, 3, 8, 12)
    rows = unfold(pixels, 2)
    assert rows.shape == (2, 24, 12)
    np.testing.assert_array_equal(rows[1, 7], pixels[1, :, 2:4, 2:4].ravel())
    merged = unfold(pixels, 2, merge=2)
    np.testing.assert_array_equal(merged[1, :4], rows[1, [0, 1, 6, 7]])
    np.testing.assert_array_equal(merged[1, 4:6], rows[1, [2, 3]])


def test_a_kernel_over_two_frames():
    kernel, bias, frames = drawn(4, 3, 2, 2, 2), drawn(4), drawn(2, 3, 4, 6)
    parts = [nn.Frame("proj.weight", i) for i in range(2)]
    halves = [part.join([kernel], None) for part in parts]
    assert parts[1].shape([kernel.shape], None) == halves[1].shape == (4, 3, 2, 2)
    back = np.zeros_like(kernel)
    for part, half in zip(parts, halves, strict=True):
        ((name, (at, values)),) = part.split(half, None).items()
        assert name == "proj.weight"
        back[at] = values
    np.testing.assert_array_equal(back, kernel)

    def work(ctx: Context) -> Tensor:
        embedding = nn.FramePatchEmbedding()
        given = [ctx.input().from_floats(x) for x in (*halves, bias)]
        embedding.weight, embedding.second, embedding.bias = given
        return embedding(*(ctx.input().from_floats(x) for x in unfold(frames, 2)))

    patches = unfold(frames, 2).reshape(2, 6, 3, 2, 2)
    want = np.einsum("fpchw,ocfhw->po", patches, kernel) + bias
    assert nmse(computed(work).reshape(want.shape), want) < 1e-12


@pytest.mark.parametrize("shape", [(4, 3, 2, 2), (4, 3, 1, 2, 2)])
def test_another_kernel_is_refused(shape: tuple[int, ...]):
    with pytest.raises(ConfigError, match="two frames in dim 2 of five are read"):
        nn.Frame("proj.weight", 0).shape([shape], None)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [  # as transformers 5.23's smart_resize, with (28, 3136, 50176)
        ((100, 60), (112, 56)),
        ((10, 10), (56, 56)),
        ((1, 150), (28, 700)),
        ((640, 480), (252, 168)),
        ((42, 70), (56, 56)),
        ((1920, 1080), (280, 168)),
    ],
)
def test_a_smart_size(size: tuple[int, int], wanted: tuple[int, int]):
    assert smart_size(size, 28, 3136, 50176) == wanted


def test_a_picture_too_long_for_a_smart_size():
    with pytest.raises(ImageError, match="1 × 300 pixels is more than 200 times as long as wide"):
        smart_size((1, 300), 28, 3136, 50176)


def test_a_smart_size_has_bounds():
    """The numbers come from a stranger's file."""
    with pytest.raises(ImageError, match=r"limits\.image_pixels"):
        smart_size((64, 64), 32, 1 << 36, 1 << 40)
    for least, most in ((0, 100), (200, 100), (-4, -2)):
        with pytest.raises(ConfigError, match=f"pictures of {least} to {most} pixels"):
            smart_size((64, 64), 32, least, most)


def test_a_smart_size_has_a_least_side():
    """As LFM2-VL's: a side is no smaller before pixels are counted."""
    assert smart_size((10, 1900), 32, 1 << 15, 1 << 18, smallest=32) == (32, 1888)
    assert smart_size((10, 1900), 32, 1 << 15, 1 << 18) == (32, 2496)
