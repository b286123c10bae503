"""Opens pictures as upright 8-bit RGB or RGBA."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import urllib.parse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..errors import ImageError

if TYPE_CHECKING:
    from PIL import Image

    Source: TypeAlias = str | Path | bytes | bytearray | memoryview | Image.Image

# A file may promise far more pixels than it has bytes; the largest cameras make 108 million.
MAX_PIXELS = 128_000_000
MAX_SIDE = 65_535  # as in JPEG
MAX_BYTES = 256 << 20

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_CONVERT = "convert it to PNG or JPEG"


def open_image(source: Source) -> Image.Image:
    """Opens a picture, upright by its EXIF orientation.

    Args:
        source: a path, the bytes of a file, a data URL (`data:image/png;base64,…`) or a PIL
            image. Files are PNG, JPEG, WebP, GIF (the first frame) or BMP.

    Returns:
        Mode RGB, or RGBA where the picture has transparency; 8 bits a channel.

    Raises:
        ImageError: the file is missing, broken, in another format, or exceeds `MAX_PIXELS`,
            `MAX_SIDE` or `MAX_BYTES`.
    """
    from PIL import Image

    if isinstance(source, Image.Image):
        return _upright(source, "the image")
    data, name = _read(source)
    try:
        with warnings.catch_warnings():  # Pillow has other limits of its own
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.UnidentifiedImageError:
        raise ImageError(
            f"{name} is no PNG, JPEG, WebP, GIF or BMP file, or its beginning is broken; {_CONVERT}"
        ) from None
    except Image.DecompressionBombError:
        raise ImageError(f"{name} has more than {MAX_PIXELS:,} pixels; make it smaller") from None
    except Exception as error:  # decoders raise whatever a broken file leads them to
        raise ImageError(f"{name} cannot be opened: {error}; {_CONVERT}") from error
    with image:
        return _upright(image, name)


def content_hash(source: Source) -> str:
    """The SHA-256 of a file's bytes, or of a PIL image's pixels, in hexadecimal.

    Raises:
        ImageError: the picture cannot be read. Files are not decoded.
    """
    from PIL import Image

    if isinstance(source, Image.Image):
        image = _upright(source, "the image")
        head = f"{image.mode} {image.width} {image.height}\n".encode()
        return hashlib.sha256(head + image.tobytes()).hexdigest()
    return hashlib.sha256(_read(source)[0]).hexdigest()


def _read(source: str | Path | bytes | bytearray | memoryview) -> tuple[bytes, str]:
    """The bytes of a file, and its name in messages."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, name = bytes(source), "the image"
    elif isinstance(source, str) and source[:5].lower() == "data:":
        data, name = _data_url(source), "the data URL"
    elif isinstance(source, (str, Path)):
        data, name = _file(source), str(source)
    else:
        raise ImageError(
            f"an image is a path, bytes, a data URL or a PIL image, not {type(source).__name__}"
        )
    if not data:
        raise ImageError(f"{name} is empty; give the bytes of a picture")
    if len(data) > MAX_BYTES:
        raise ImageError(f"{name} has more than {MAX_BYTES >> 20} MiB; make it smaller")
    return data, name


def _data_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma:
        raise ImageError("a data URL looks like data:image/png;base64,…; this one has no comma")
    if not head.lower().endswith(";base64"):
        return urllib.parse.unquote_to_bytes(body)
    try:
        body = "".join(urllib.parse.unquote(body).split())
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"the data URL is no base64: {error}; encode the picture again") from None


def _file(path: str | Path) -> bytes:
    text = str(path)
    if text.lower().startswith(("http://", "https://")):
        raise ImageError(f"{text:.200} is not fetched; download the picture and give its path")
    try:
        # Opening a pipe would wait for a writer for ever.
        if Path(path).exists() and not Path(path).is_file():
            raise ImageError(f"{text:.200} is not a regular file; give the path of a picture")
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ImageError(f"there is no file {text:.200}; check the path") from None
    except (OSError, ValueError) as error:
        raise ImageError(f"{text:.200} cannot be read: {error}; check the path") from None


def _upright(image: Image.Image, name: str) -> Image.Image:
    """Checks the size of a picture, decodes it and turns it upright."""
    from PIL import ImageOps

    width, height = image.size
    if not width or not height:
        raise ImageError(f"{name} has no pixels ({width} × {height}); give another picture")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise ImageError(
            f"{name} has {width} × {height} pixels; at most {MAX_PIXELS:,} and {MAX_SIDE:,} a side "
            f"are decoded; make it smaller"
        )
    try:
        image.load()
        return _eight_bit(ImageOps.exif_transpose(image))  # a copy in any case
    except ImageError:
        raise
    except Exception as error:  # decoders raise whatever a broken file leads them to
        raise ImageError(f"{name} is broken: {error}; save the picture again") from error


def _eight_bit(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I;16"):
        levels = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((levels * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ImageError(
            f"the image has mode {image.mode}, whose range is unknown; convert it to 8 bits"
        )
    wanted = "RGBA" if image.has_transparency_data else "RGB"
    return image if image.mode == wanted else image.convert(wanted)
