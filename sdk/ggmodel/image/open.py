"""Pictures opened as upright 8-bit RGB or RGBA, within bounds of memory and time.

The cost of a JPEG is bounded by its markers, before anything decodes it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

import numpy as np

from ..bounds import limits, spend
from ..errors import ImageError, OutOfMemory
from ..reading import given_bytes, too_large

if TYPE_CHECKING:
    from PIL import Image

    Source: TypeAlias = str | Path | bytes | bytearray | memoryview | Image.Image

_BAND = 1 << 20  # pixels of a part; copies of it take some 40 MB in the form of float64

P = ParamSpec("P")
R = TypeVar("R")


def bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """The first row of each part of a picture from top to bottom, and a copy of the part."""
    height = max(1, _BAND // max(1, image.width))
    for top in range(0, image.height, height):
        yield top, image.crop((0, top, image.width, min(top + height, image.height)))


def within_memory(function: Callable[P, R]) -> Callable[P, R]:
    """Turns the bare MemoryError of Pillow and numpy into `OutOfMemory`."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except OutOfMemory:
            raise
        except MemoryError:
            size = getattr(args[0], "size", None) if args else None
            of = f" of {size[0]:,} × {size[1]:,} pixels" if isinstance(size, tuple) else ""
            raise OutOfMemory(
                f"no memory for a picture{of} ({function.__name__}); make it smaller, or lower "
                f"ggmodel.limits.image_pixels"
            ) from None

    return guarded


BEGIN = b"\xff\xd8"

# Other codes have no segment: bytes of a scan, fill bytes, restarts, or what decoders refuse.
_MARKER = re.compile(rb"\xff[\xc0-\xc7\xc9-\xcf\xd9-\xef\xfe]")
_END, _SCAN = 0xD9, 0xDA
_MOST_SEGMENTS = 100_000  # a profile or the like of 256 MB has 4,096
_MOST_JUNK = 1 << 20  # bytes between segments; Pillow reads them one by one


def check_jpeg(data: bytes, name: str) -> None:
    """Checks what a decoder would go over: everything up to the end of the picture. Phones put
    films and further pictures behind it.

    Args:
        name: the file's, for messages.

    Raises:
        ImageError: it has more scans than the limit `image_scans`, each of which goes over all
            pixels, while one without content takes 10 bytes; or masses of other segments or bytes
            between them.
    """
    scans = segments = junk = 0
    at = len(BEGIN)
    while at < len(data) and segments <= _MOST_SEGMENTS and junk <= _MOST_JUNK:
        marker = _MARKER.search(data, at)
        start, end = marker.span() if marker else (len(data), len(data))
        if not scans:
            junk += start - at
        at = end
        if marker is None or data[end - 1] == _END:
            if scans:
                break
            continue  # as Pillow does; libjpeg refuses it
        segments += 1
        scans += data[end - 1] == _SCAN
        at += max(2, int.from_bytes(data[end : end + 2], "big"))
    if scans > limits.image_scans:
        raise ImageError(too_large(name, f"{scans:,} scans", "image_scans"))
    if segments > _MOST_SEGMENTS:
        raise ImageError(f"{name} has more than {_MOST_SEGMENTS:,} segments; save it again")
    if junk > _MOST_JUNK:
        raise ImageError(
            f"{name} has more than {_MOST_JUNK:,} bytes that belong to no segment; save it again"
        )


_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# Bytes of decoding with all copies up to RGB: at most those of a progressive JPEG of CMYK;
# Pillow keeps five copies of a WebP.
_USUAL_BYTES, _BYTES_A_PIXEL = 13, {"WEBP": 21}
_CONVERT = "convert it to PNG or JPEG"


@within_memory
def open_image(source: Source) -> Image.Image:
    """Opens a picture, upright by its EXIF orientation.

    docs/images.md says how much memory it takes.

    Args:
        source: a path, the bytes of a file, a data URL (`data:image/png;base64,…`) or a PIL
            image. Files are PNG, JPEG, WebP, GIF (the first frame) or BMP.

    Returns:
        Mode RGB, or RGBA where the picture has transparency; 8 bits a channel.

    Raises:
        ImageError: the file is missing, broken, in another format, or exceeds one of
            `ggmodel.limits`: `image_bytes`, `image_memory`, `image_pixels`, `image_scans`,
            `image_side`.
        OutOfMemory: there is no room for it.
    """
    from PIL import Image

    if isinstance(source, Image.Image):
        opened = _upright(source, "the image")
        return opened.copy() if opened is source else opened
    data, name = _read(source)
    if data.startswith(BEGIN):
        check_jpeg(data, name)
    try:
        with warnings.catch_warnings():  # Pillow has other limits of its own
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.UnidentifiedImageError:
        raise ImageError(
            f"{name} is no PNG, JPEG, WebP, GIF or BMP file, or its beginning is broken; {_CONVERT}"
        ) from None
    except Image.DecompressionBombError:
        raise ImageError(
            f"{name} has more pixels than Pillow's own limit, or than the limit image_pixels, "
            f"{limits.image_pixels:,}; make it smaller, or raise both "
            f"(PIL.Image.MAX_IMAGE_PIXELS)"
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise whatever a broken file leads them to
        raise ImageError(f"{name} cannot be opened: {error}; {_CONVERT}") from error
    with image:
        spend("request_pixels", image.width * image.height, "pixels of pictures")
        return _upright(image, name)


@within_memory
def content_hash(source: Source) -> str:
    """The SHA-256 of a file's bytes, or of a PIL image's pixels, in hexadecimal.

    Raises:
        ImageError: the picture cannot be read. Files are not decoded.
        OutOfMemory: there is no room for it.
    """
    from PIL import Image

    if isinstance(source, Image.Image):
        image = _upright(source, "the image")
        digest = hashlib.sha256(f"{image.mode} {image.width} {image.height}\n".encode())
        for _, band in bands(image):
            digest.update(band.tobytes())
        return digest.hexdigest()
    return hashlib.sha256(_read(source)[0]).hexdigest()


def _read(source: str | Path | bytes | bytearray | memoryview) -> tuple[bytes, str]:
    """The bytes of a file, and its name in messages."""
    if not isinstance(source, (str, Path, bytes, bytearray, memoryview)):
        raise ImageError(
            f"an image is a path, bytes, a data URL or a PIL image, not {type(source).__name__}"
        )
    return given_bytes(source, "image", "image_bytes", ImageError)


def _upright(image: Image.Image, name: str) -> Image.Image:
    """Checks the size of a picture, decodes it and turns it upright: itself, or another."""
    width, height = image.size
    if not width or not height:
        raise ImageError(f"{name} has no pixels ({width} × {height}); give another picture")
    if width * height > limits.image_pixels or max(width, height) > limits.image_side:
        raise ImageError(
            f"{name} has {width} × {height} pixels; at most {limits.image_pixels:,} and "
            f"{limits.image_side:,} a side are decoded (ggmodel.limits.image_pixels, image_side); "
            "make it smaller"
        )
    needed = width * height * _BYTES_A_PIXEL.get(image.format or "", _USUAL_BYTES)
    if needed > limits.image_memory:
        raise ImageError(too_large(name, f"{needed:,} bytes once it is decoded", "image_memory"))
    try:
        image.load()
        return _eight_bit(_turned(image))
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever a broken file leads them to
        if "out of memory" in str(error):  # so Pillow says it for some formats
            raise MemoryError from None
        raise ImageError(f"{name} is broken: {error}; save the picture again") from error


def _turned(image: Image.Image) -> Image.Image:
    """The picture upright: itself, or another."""
    from PIL import ExifTags, ImageOps

    turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    return ImageOps.exif_transpose(image) if turned else image


def _eight_bit(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I;16"):
        deep, image = image, Image.new("L", image.size)
        for top, band in bands(deep):
            levels = np.asarray(band).astype(np.uint32)
            levels = (levels * 255 + 32767) // 65535
            image.paste(Image.fromarray(levels.astype(np.uint8)), (0, top))
        del deep
    if image.mode in ("I", "F"):
        raise ImageError(
            f"the image has mode {image.mode}, whose range is unknown; convert it to 8 bits"
        )
    mode = "RGBA" if image.has_transparency_data else "RGB"
    return image if image.mode == mode else image.convert(mode)
