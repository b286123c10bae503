"""Damaged pictures of every format, and pictures that promise more than they have."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from functools import cache
from random import Random

import numpy as np
from PIL import Image

from ggmodel.errors import ImageError
from ggmodel.image import open_image
from ggmodel.image.open import content_hash
from tests.fuzz.damage import damaged
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong

_SIDES = [0, 1, 2, 255, 4096, 11_300, 20_000, 65_535, 65_536, 2**31 - 1, 2**32 - 1]


@cache
def pictures() -> list[bytes]:
    """Small pictures in all formats and many of their kinds."""
    noise = np.random.default_rng(1).integers(0, 256, (23, 31, 4), np.uint8)
    rgba = Image.fromarray(noise)
    modes = {mode: rgba.convert(mode) for mode in ("RGB", "L", "P", "1", "CMYK", "LA", "RGBA")}
    modes["I;16"] = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[str, str, dict[str, object]]] = [
        *(("PNG", mode, {}) for mode in ("RGB", "L", "P", "1", "LA", "RGBA", "I;16")),
        ("JPEG", "RGB", {"exif": exif}),
        ("JPEG", "L", {"progressive": True}),
        ("JPEG", "CMYK", {}),
        ("WEBP", "RGB", {"exif": exif}),
        ("WEBP", "RGBA", {"lossless": True}),
        ("GIF", "P", {"save_all": True, "append_images": [modes["P"]] * 3}),
        ("GIF", "L", {"transparency": 3}),
        *(("BMP", mode, {}) for mode in ("RGB", "L", "P", "1")),
        *((name, "RGB", {}) for name in ("TIFF", "ICO", "PPM", "TGA")),  # to be refused
    ]
    found = []
    for format, mode, options in kinds:
        file = io.BytesIO()
        modes[mode].save(file, format, **options)
        found.append(file.getvalue())
    return found


class Images(Fuzzer):
    """Opens pictures of strangers, from bytes, files and data URLs."""

    name = "images"
    unit = "opened"
    weight = 1.5
    memory = 1 << 30

    def make(self, random: Random) -> dict[str, object]:
        kind = random.random()
        if kind < 0.25:
            raw = _larger(random, random.choice(pictures()))
        elif kind < 0.3:
            raw = _bomb(random)
        else:
            raw = damaged(random, random.choice(pictures()))
        return {"raw": raw, "way": random.choice(["bytes", "bytes", "file", "url"])}

    def run(self, case: dict[str, object], note: Note) -> None:
        raw, way = case["raw"], case["way"]
        assert isinstance(raw, bytes)
        source: bytes | str = raw
        if way == "file":
            path = self.folder / "picture"
            path.write_bytes(raw)
            source = str(path)
        elif way == "url":
            source = "data:image/png;base64," + base64.b64encode(raw).decode()
        try:
            image = open_image(source)
        except ImageError:
            self.counts["refused"] += 1
            return
        self.counts["opened"] += 1
        if image.mode not in ("RGB", "RGBA") or 0 in image.size:
            raise Wrong("a picture that is not RGB", f"{image.mode} {image.size}")
        content_hash(source)


def _larger(random: Random, raw: bytes) -> bytes:
    """The same with another width or height, where its format has it."""
    side = random.choice(_SIDES)
    if raw[:4] == b"\x89PNG":
        at = random.choice([16, 20])
        head = raw[12:at] + struct.pack(">I", side) + raw[at + 4 : 29]
        return raw[:12] + head + struct.pack(">I", zlib.crc32(head)) + raw[33:]
    places: dict[bytes, tuple[list[int], str]] = {
        b"GIF8": ([6, 8], "<H"),
        b"BM": ([18, 22], "<i"),
        b"RIFF": ([21, 23, 24, 26, 27], "<H"),
    }
    for magic, (offsets, code) in places.items():
        if raw.startswith(magic):
            at, size = random.choice(offsets), struct.calcsize(code)
            number = struct.pack("<q", side)[:size]
            return raw[:at] + number + raw[at + size :]
    at = max(raw.find(b"\xff\xc0"), raw.find(b"\xff\xc2"))  # the frame of a JPEG
    at += random.choice([5, 7])
    return raw[:at] + struct.pack(">H", side % 65_536) + raw[at + 2 :]


def _bomb(random: Random) -> bytes:
    """A small file with many pixels: zeros compress a thousand times."""
    depth, colour = random.choice([(1, 0), (8, 0), (8, 2), (16, 6), (8, 3)])
    width, height = (random.choice([1, 3000, 8000, 11_300, 30_000]) for _ in range(2))
    channels = {0: 1, 2: 3, 3: 1, 6: 4}[colour]
    row = 1 + (width * depth * channels + 7) // 8
    packer = zlib.compressobj(1)
    left, body = min(row * height, 64 << 20), bytearray()
    while left > 0:
        body += packer.compress(bytes(min(left, 1 << 20)))
        left -= 1 << 20
    body += packer.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, random.choice([0, 0, 1]))
    palette = _chunk(b"PLTE", bytes(3)) if colour == 3 else b""
    parts = (_chunk(b"IHDR", header), palette, _chunk(b"IDAT", bytes(body)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
