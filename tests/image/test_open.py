"""Pictures from files, bytes and data URLs; and files that are no pictures."""

import base64
import hashlib
import io
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from ggmodel import limits
from ggmodel.errors import Error, ImageError
from ggmodel.image import content_hash, open_image
from tests.image.noise import noise


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png(width, height, colour_type=2, depth=8, data=b""):
    """A PNG with a header that promises anything."""

    def chunk(kind, body):
        check = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def refused(source, *parts):
    with pytest.raises(ImageError) as caught:
        open_image(source)
    for part in parts:
        assert part in str(caught.value)


PHOTO = noise(11, 7)
PNG = encoded(PHOTO, "PNG")


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP"])
def test_exact_formats_give_their_pixels(form):
    options = {"lossless": True} if form == "WEBP" else {}
    assert open_image(encoded(PHOTO, form, **options)).tobytes() == PHOTO.tobytes()


def test_jpeg_gives_what_pillow_decodes():
    data = encoded(PHOTO, "JPEG", quality=95)
    assert open_image(data).tobytes() == Image.open(io.BytesIO(data)).tobytes()


def test_of_a_gif_the_first_frame_counts():
    frames = [Image.new("RGB", (3, 2), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert open_image(data).convert("RGB").getpixel((1, 1)) == (255, 0, 0)


def test_paths_bytes_and_data_urls_are_the_same_picture(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(PNG)
    text = base64.b64encode(PNG).decode()
    percent = "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG)
    urls = [f"data:image/png;base64,{text}", f"DATA:;base64,{text.rstrip('=')}", percent]
    for source in (path, str(path), PNG, bytearray(PNG), memoryview(PNG), PHOTO, *urls):
        assert open_image(source).tobytes() == PHOTO.tobytes()
    for source in (path, str(path), PNG, bytearray(PNG), *urls):
        assert content_hash(source) == hashlib.sha256(PNG).hexdigest()


def test_the_hash_of_an_image_is_of_its_pixels():
    assert content_hash(PHOTO) == content_hash(open_image(PNG))
    assert content_hash(PHOTO) != content_hash(noise(11, 7, channels=4))
    flat, tall = Image.new("RGB", (4, 2)), Image.new("RGB", (2, 4))
    assert content_hash(flat) != content_hash(tall)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(orientation):
    upright = np.asarray(PHOTO)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=exif)
    np.testing.assert_array_equal(np.asarray(open_image(data)), upright)


def test_grey_becomes_rgb():
    grey = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    opened = open_image(encoded(grey, "PNG"))
    assert opened.mode == "RGB"
    assert opened.getpixel((2, 1)) == (5, 5, 5)
    assert open_image(encoded(grey.convert("1"), "PNG")).mode == "RGB"


def test_sixteen_bits_are_scaled_not_clipped():
    deep = np.array([[0, 128, 129, 257, 32768, 65535]], np.uint16)
    opened = open_image(encoded(Image.fromarray(deep), "PNG"))
    assert np.asarray(opened)[0, :, 0].tolist() == [0, 0, 1, 1, 128, 255]


def test_transparency_is_kept():
    clear = Image.new("RGBA", (2, 1), (10, 20, 30, 40))
    assert open_image(encoded(clear, "PNG")).getpixel((1, 0)) == (10, 20, 30, 40)
    two = open_image(encoded(Image.new("LA", (1, 1), (7, 9)), "PNG"))
    assert (two.mode, two.getpixel((0, 0))) == ("RGBA", (7, 7, 7, 9))


def test_a_palette_may_have_transparency():
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    assert open_image(encoded(palette, "PNG")).getpixel((1, 0)) == (40, 50, 60)
    opened = open_image(encoded(palette, "PNG", transparency=1))
    assert opened.getpixel((0, 0)) == (10, 20, 30, 255)
    assert opened.getpixel((1, 0)) == (40, 50, 60, 0)


def test_a_colour_may_mean_transparent():
    data = encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG", transparency=(1, 2, 3))
    assert open_image(data).getpixel((0, 0)) == (1, 2, 3, 0)


def test_cmyk_becomes_rgb():
    opened = open_image(encoded(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG", quality=100))
    assert opened.mode == "RGB"
    assert np.abs(np.asarray(opened, int)[4, 4] - (0, 255, 255)).max() < 10


def test_an_image_given_is_not_changed_nor_shared():
    given = PHOTO.copy()
    open_image(given).putpixel((0, 0), (0, 0, 0))
    assert given.tobytes() == PHOTO.tobytes()


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_of_unknown_range_are_refused(mode):
    refused(Image.new(mode, (2, 2)), f"mode {mode}", "convert it to 8 bits")


@pytest.mark.parametrize("size", [(20_000, 20_000), (100_000, 100_000), (13_000, 10_000)])
def test_bombs_are_refused_from_the_header(size):
    refused(png(*size), "pixels", "smaller")


def test_a_long_line_is_refused():
    refused(png(limits.image_side + 1, 1), f"{limits.image_side:,} a side", "smaller")


def test_large_cameras_pass_the_limit():
    assert limits.image_pixels >= 12_000 * 9_000
    with pytest.raises(ImageError, match="broken"):  # the header passes, the data is missing
        open_image(png(12_000, 9_000))


def test_a_picture_without_pixels_is_refused():
    refused(Image.new("RGB", (0, 3)), "no pixels")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_truncated_files_are_refused(form):
    data = encoded(noise(40, 40), form)
    for share in (0.05, 0.5, 0.9):
        refused(data[: int(len(data) * share)], "the image")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_damaged_files_are_refused_or_give_a_picture(form):
    chooser = np.random.default_rng(3)
    data = np.frombuffer(encoded(noise(24, 24), form), np.uint8)
    for _ in range(150):
        damaged = data.copy()
        at = chooser.integers(0, min(len(data), 400), 4)
        damaged[at] = chooser.integers(0, 256, 4)
        try:
            image = open_image(damaged.tobytes())
        except ImageError:
            continue
        assert image.mode in ("RGB", "RGBA")


def test_other_files_are_refused():
    refused(b"%PDF-1.7 and so on", "PNG, JPEG, WebP, GIF or BMP", "convert it")
    refused(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "convert it")
    refused(encoded(PHOTO, "TIFF"), "convert it")
    refused(b"", "empty")


def test_what_is_no_source_is_refused():
    refused(None, "NoneType", "data URL")
    refused(np.zeros((2, 2, 3)), "ndarray")


def test_addresses_are_not_fetched():
    refused("https://example.org/cat.png", "not fetched", "download")
    refused("HTTP://example.org/cat.png", "not fetched")


def test_broken_data_urls_are_refused():
    refused("data:image/png;base64", "comma")
    refused("data:image/png;base64,", "empty")
    refused("data:image/png;base64,%%%", "base64")
    refused("data:image/png;base64,aGVsbG8=", "PNG")


def test_paths_without_a_picture_are_refused(tmp_path):
    refused(tmp_path / "none.png", "no file", "none.png")
    refused(tmp_path, "not a regular file")
    refused("bad\0name", "cannot be read")
    refused("x" * 5000, "cannot be read")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")


def test_huge_files_are_refused(tmp_path):
    with open(tmp_path / "huge.png", "wb") as file:
        file.truncate(limits.image_bytes + 1)
    refused(tmp_path / "huge.png", "image_bytes")


def test_an_image_error_is_one_of_ours():
    assert issubclass(ImageError, Error) and issubclass(ImageError, ValueError)


def test_pillow_is_imported_when_a_picture_is_opened():
    code = "import sys, ggmodel.image; print('PIL' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
