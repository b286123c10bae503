"""Memory that pictures take: measured in children, whose address space has a limit."""

from __future__ import annotations

import hashlib
import io
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ggmodel import limits
from ggmodel.errors import ImageError, OutOfMemory
from ggmodel.image import composite, content_hash, normalize, open, open_image, resize
from tests.image.noise import noise

# Prints the error, or the bytes a pixel that each step added to the highest use of memory.
CHILD = """
import json, resource, sys
import ggmodel.image as gi
from ggmodel.errors import OutOfMemory
from PIL import Image
Image.init()
warm = gi.composite(gi.open_image(Image.new("RGBA", (64, 64))))
gi.normalize(gi.resize(warm, (32, 32)), 0.5, 0.5)
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) << 10
if sys.argv[2] != "0":
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    limit = used + (int(sys.argv[2]) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = peak()
try:
    image = gi.open_image(sys.argv[1])
    opened = peak()
    gi.content_hash(image)
    gi.normalize(gi.resize(gi.composite(image), (224, 224)), 0.5, 0.5)
    pixels = image.width * image.height
    print(json.dumps([(opened - before) / pixels, (peak() - before) / pixels]))
except OutOfMemory as error:
    print("OutOfMemory", error)
"""


def child(path: Path, megabytes: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(megabytes)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout.strip()


def one_bit(side: int) -> bytes:
    """A PNG of a few kB."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    body = zlib.compress(bytes((side + 7) // 8 + 1) * side, 9)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


SIDE = 2000


def written(path: Path, form: str) -> Path:
    image = noise(SIDE // 20, SIDE // 20, channels=4).resize((SIDE, SIDE))
    exif = Image.Exif()
    exif[0x0112] = 6
    if form == "1.png":
        path.write_bytes(one_bit(SIDE))
    elif form == "turned.jpg":
        image.convert("RGB").save(path, "JPEG", exif=exif)
    elif form == "progressive.jpg":
        image.convert("CMYK").save(path, "JPEG", progressive=True)
    elif form == "turned.png":
        image.save(path, "PNG", exif=exif, compress_level=1)
    else:
        image.save(path, "WEBP", lossless=True, quality=0, method=0)
    return path


@pytest.mark.parametrize(
    ("form", "most"),
    [("1.png", 6), ("turned.jpg", 9), ("progressive.jpg", 13), ("turned.png", 11), ("webp", 21)],
)
def test_a_picture_takes_so_many_bytes_a_pixel(tmp_path: Path, form: str, most: int):
    room = 60e6 / SIDE**2  # of parts and of the result, whatever the size
    opened, all = map(float, child(written(tmp_path / form, form)).strip("[]").split(","))
    assert opened < most + 1
    assert all < most + 1 + room


def test_a_small_file_asks_for_little(tmp_path: Path):
    noise(16, 16).save(tmp_path / "small.png")
    assert child(tmp_path / "small.png", 60).startswith("[")


@pytest.mark.parametrize("megabytes", [5, 20, 60, 100, 130])
def test_too_little_memory_is_an_error_of_its_own(tmp_path: Path, megabytes: int):
    (tmp_path / "bomb.png").write_bytes(one_bit(8000))
    said = child(tmp_path / "bomb.png", megabytes)
    assert said.startswith("OutOfMemory no memory for a picture")


def test_what_decoding_would_take_is_computed_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "image_memory", 13 * 100 * 100)
    open_image(one_bit(100))
    buffer = io.BytesIO()
    Image.new("RGB", (100, 100)).save(buffer, "WEBP")
    for data in (one_bit(101), buffer.getvalue()):
        with pytest.raises(ImageError, match=r"bytes once it is decoded.*image_memory"):
            open_image(data)


def test_the_limits_belong_together():
    assert 13 * limits.image_pixels <= limits.image_memory


def test_a_jpeg_has_so_many_scans():
    buffer = io.BytesIO()
    noise(64, 64).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    assert data.count(b"\xff\xda") > 5
    open_image(data)
    last = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(ImageError, match=r"has 7[0-9] scans, but the limit is 64; .*image_scans"):
        open_image(data[:-2] + last * 64 + data[-2:])


def test_what_lies_behind_or_beside_a_picture_has_no_scans():
    """Phones put films and further pictures behind theirs, cameras previews into segments."""
    buffer = io.BytesIO()
    noise(640, 480).save(buffer, "JPEG", quality=60)
    data = buffer.getvalue()
    tail = np.random.default_rng(0).bytes(5 << 20) + b"\xff\xda" * 100
    preview = b"\xff\xe2" + struct.pack(">H", 2 + 1200) + b"\xff\xda\0\x02" * 300
    for more in (data + tail, data[:2] + preview + data[2:], data[:-2] + preview + data[-2:]):
        assert more.count(b"\xff\xda") > 64
        assert open_image(more).tobytes() == open_image(data).tobytes()


@pytest.mark.parametrize(
    ("begin", "repeated", "message"),
    [
        (b"", b"\xff\xe0\0\x02", "more than 100,000 segments"),
        (b"\xff\xda\0\x02", b"\xff\xe0\0\x02", "more than 100,000 segments"),
        (b"", b"\xff\xfe\0\0", "more than 100,000 segments"),
        (b"", b"\0", "belong to no segment"),
        (b"", b"\xff", "belong to no segment"),
        (b"", b"\xff\0", "belong to no segment"),
        (b"", b"\xff\xd0", "belong to no segment"),
        (b"", b"\xff\xf0\0\x02", "belong to no segment"),
        (b"\xff\xd9", b"\0", "belong to no segment"),
        (b"\xff\xda\0\x02", b"\xff\xda", "scans"),
    ],
)
def test_a_jpeg_of_nothing_is_refused_soon(begin: bytes, repeated: bytes, message: str):
    before = time.monotonic()
    with pytest.raises(ImageError, match=message):
        open_image(b"\xff\xd8" + begin + repeated * ((64 << 20) // len(repeated)))
    assert time.monotonic() - before < 20


def test_memory_that_lacks_is_no_damage(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "load", fails)
    with pytest.raises(OutOfMemory, match="no memory for a picture"):
        open_image(one_bit(8))
    monkeypatch.setattr(np, "asarray", fails)
    with pytest.raises(OutOfMemory, match="of 8 × 8 pixels"):
        normalize(Image.new("RGB", (8, 8)), 0.5, 0.5)


@pytest.mark.parametrize("band", [1, 50, 1000])
def test_parts_give_the_same_as_the_whole(monkeypatch: pytest.MonkeyPatch, band: int):
    pictures = [noise(61, 43), noise(7, 90), noise(43, 61, channels=4)]
    pictures.append(Image.fromarray(np.arange(700, dtype=np.uint16).reshape(20, 35) * 90))

    def results() -> list[bytes]:
        found = []
        for picture in pictures:
            opened = open_image(picture)
            found += [opened.tobytes(), content_hash(picture).encode()]
            flat = composite(opened)
            found.append(flat.tobytes())
            for size in ((20, 30), (100, 7), (flat.width, 5), (5, flat.height), flat.size):
                for method in ("bilinear", "bicubic"):
                    found.append(resize(flat, size, method).tobytes())
        return found

    whole = results()
    monkeypatch.setattr(open, "_BAND", band)
    assert results() == whole
    assert (
        content_hash(pictures[0])
        == hashlib.sha256(b"RGB 61 43\n" + pictures[0].tobytes()).hexdigest()
    )
