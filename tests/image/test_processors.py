"""The steps, put together as the three architectures need them, against transformers' processors.

Every comparison is exact: resizing computes with the same integers, and the floating point steps
are the same operations in the same order.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ggmodel.errors import ImageError
from ggmodel.image import (
    METHODS,
    best_canvas,
    composite,
    fit,
    normalize,
    pad,
    resize,
    split_tiles,
    tile_grids,
)
from ggmodel.models.llama4.image import tiles_of as llama4_tiles
from ggmodel.models.mllama.image import tiles_of as mllama_tiles
from ggmodel.models.mllama.image import tiles_used
from tests.image.noise import LARGE, RESIZED, SIDE, SIZES, noise

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
HALF = {"image_mean": 0.5, "image_std": 0.5}


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parent / "goldens.npz", allow_pickle=False) as file:
        return dict(file)


def picture(n):
    return noise(*SIZES[n], channels=3 + n % 2)


def placed(size, side, most, single):
    """The canvas and the size of the picture on it."""
    canvas = best_canvas(size, [(side * c, side * r) for r, c in tile_grids(most)])
    limit = min(max(size[0], side), canvas[0]), min(max(size[1], side), canvas[1])
    return canvas, fit(size, limit, single)


def gemma3(image):
    return normalize(resize(composite(image), (SIDE, SIDE)), 0.5, 0.5)


def llama4(image):
    h: Any = SimpleNamespace(tile=SIDE, tiles=16, resample="bilinear", **HALF)
    pixels = llama4_tiles(image, h)
    return pixels.values, pixels.data["aspect_ratio"]


def mllama(image):
    clip = {"image_mean": MEAN, "image_std": STD}
    h: Any = SimpleNamespace(tile=SIDE, tiles=4, resample="bilinear", **clip)
    pixels = mllama_tiles(image, h)
    ratio = pixels.data["aspect_ratio_id"]
    return pixels.values, ratio, tiles_used(ratio, 4)


@pytest.mark.parametrize("n", range(len(RESIZED)))
def test_resizing_equals_torchvision(golden, n):
    size, to, method = RESIZED[n]
    ours = np.asarray(resize(noise(*size), to, method))
    np.testing.assert_array_equal(ours, golden[f"resized.{n}"])


@pytest.mark.parametrize(("size", "to"), [(r[0], r[1]) for r in RESIZED])
def test_resizing_differs_from_pillow_by_rounding_only(size, to):
    theirs = noise(*size).resize(to, Image.Resampling.BILINEAR)
    ours = np.asarray(resize(noise(*size), to), int)
    assert np.abs(ours - np.asarray(theirs)).max() <= 1


@pytest.mark.parametrize(("size", "to", "method"), RESIZED)
def test_resizing_as_pillow_does(size, to, method):
    theirs = np.asarray(noise(*size).resize(to, Image.Resampling[method.upper()]))
    np.testing.assert_array_equal(np.asarray(resize(noise(*size), to, method, pillow=True)), theirs)


def test_a_method_by_the_number_that_checkpoints_have():
    for number, method in METHODS.items():
        assert Image.Resampling(number).name.lower() == method
        by_name = np.asarray(resize(noise(9, 9), (4, 5), method))
        np.testing.assert_array_equal(np.asarray(resize(noise(9, 9), (4, 5), number)), by_name)


@pytest.mark.parametrize("n", range(len(SIZES)))
def test_gemma3_equals_its_processor(golden, n):
    np.testing.assert_array_equal(gemma3(picture(n)), golden[f"gemma3.{n}"])


@pytest.mark.parametrize("n", range(len(SIZES)))
def test_llama4_equals_its_processor(golden, n):
    tiles, grid = llama4(picture(n))
    assert grid == tuple(golden[f"llama4.grid.{n}"])
    np.testing.assert_array_equal(tiles, golden[f"llama4.{n}"])


@pytest.mark.parametrize("n", range(len(SIZES)))
def test_mllama_equals_its_processor(golden, n):
    tiles, ratio, used = mllama(picture(n))
    assert ratio == golden[f"mllama.ratio.{n}"]
    assert used == golden[f"mllama.mask.{n}"].sum()
    np.testing.assert_array_equal(tiles, golden[f"mllama.{n}"])


def test_canvases_and_sizes_at_full_scale(golden):
    ours = [(*canvas, *size) for canvas, size in (placed(s, 336, 16, True) for s in LARGE)]
    np.testing.assert_array_equal(ours, golden["llama4.sizes"])
    ours = [(*canvas, *size) for canvas, size in (placed(s, 560, 4, False) for s in LARGE)]
    np.testing.assert_array_equal(ours, golden["mllama.sizes"])


def test_single_precision_can_move_a_side_by_one():
    assert fit((1200, 1600), (1008, 1344)) == (1008, 1344)
    assert fit((1200, 1600), (1008, 1344), single=True) == (1007, 1344)


def test_a_side_is_scaled_in_the_precision_of_the_other_ones_ratio():
    # Only the longer side exceeds the limit.
    assert fit((110, 440), (336, 336), single=True) == (84, 336)
    assert fit((440, 110), (336, 336), single=True) == (336, 84)


def test_the_best_canvas_enlarges_least_else_reduces_least():
    canvases = [(10, 10), (20, 10), (10, 20), (20, 20)]
    assert best_canvas((8, 8), canvases) == (10, 10)
    assert best_canvas((11, 9), canvases) == (20, 10)
    assert best_canvas((15, 16), canvases) == (20, 20)
    assert best_canvas((90, 30), canvases) == (20, 10), "of equal scales the smallest area"
    assert best_canvas((30, 90), canvases) == (10, 20)


def test_a_fitting_side_is_never_below_one():
    assert fit((1000, 1), (10, 10)) == (10, 1)
    assert fit((1, 1000), (10, 10)) == (1, 10)


def test_tiles_go_row_by_row():
    pixels = np.arange(3 * 4 * 6).reshape(3, 4, 6)
    tiles = split_tiles(pixels, 2, 3)
    assert tiles.shape == (6, 3, 2, 2)
    np.testing.assert_array_equal(tiles[1], pixels[:, :2, 2:4])
    np.testing.assert_array_equal(tiles[3], pixels[:, 2:, :2])


def test_padding_is_black_to_the_right_and_below():
    padded = np.asarray(pad(Image.new("RGB", (2, 1), (9, 8, 7)), (3, 2)))
    assert padded.tolist() == [[[9, 8, 7], [9, 8, 7], [0, 0, 0]], [[0, 0, 0]] * 3]
    with pytest.raises(ImageError, match="4 × 1 cannot be padded to 3 × 2; resize it first"):
        pad(Image.new("RGB", (4, 1)), (3, 2))


def test_transparency_shows_the_ground():
    clear = Image.new("RGBA", (1, 1), (10, 20, 30, 0))
    assert composite(clear).getpixel((0, 0)) == (255, 255, 255)
    assert composite(clear, (1, 2, 3)).getpixel((0, 0)) == (1, 2, 3)


@pytest.mark.parametrize("to", [(5, 5), (45, 45)])
def test_bicubic_weights_end_where_the_kernel_does(to):
    # By an odd factor a pixel lies exactly at the end of the kernel, whose weight there is 0.
    image = Image.fromarray((np.asarray(noise(15, 15)) // 4 + 96).astype(np.uint8))
    theirs = np.asarray(image.resize(to, Image.Resampling.BICUBIC), int)
    assert np.abs(np.asarray(resize(image, to, "bicubic"), int) - theirs).max() <= 1


@pytest.mark.parametrize(("size", "method"), [((0, 4), "bilinear"), ((4, 5), "box"), ((4, 5), 4)])
def test_resizing_to_nothing_or_by_an_unknown_method_is_refused(size, method):
    expected = f"{size[0]} × {size[1]} by {method!r}; choose bilinear, bicubic, lanczos"
    with pytest.raises(ImageError, match=expected):
        resize(noise(4, 4), size, method)


def test_the_steps_want_rgb():
    steps = (
        lambda i: resize(i, (2, 2)),
        lambda i: resize(i, (2, 2), pillow=True),
        lambda i: normalize(i, 0.5, 0.5),
    )
    for step in steps:
        with pytest.raises(ImageError, match="composite it first"):
            step(noise(4, 4, channels=4))


def test_bfloat16_rounds_ties_to_even():
    image = Image.new("RGB", (1, 1), (1, 1, 1))
    rounded = normalize(image, (-1 / 256, -3 / 256, 0), 1, rescale=1, bfloat16=True)
    assert rounded.ravel().tolist() == [1, 1 + 4 / 256, 1]
