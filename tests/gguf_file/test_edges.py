"""Data of tensors that touches, and data that overlaps by one byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ggmodel.errors import FormatError
from ggmodel.gguf_file import GGUF


def two_vectors(path: Path, second: int) -> Path:
    """A file aligned to single bytes with two vectors of 4 bytes, the second at offset `second`."""
    key, head = b"general.alignment", b"GGUF" + struct.pack("<IQQ", 3, 2, 1)
    head += struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 1)
    for name, offset in ((b"a", 0), (b"b", second)):
        head += struct.pack("<Q", 1) + name + struct.pack("<IQIQ", 1, 1, 0, offset)
    path.write_bytes(head + bytes(range(4 + second)))
    return path


def test_data_may_touch(tmp_path: Path):
    with GGUF(two_vectors(tmp_path / "model.gguf", 4)) as source:
        assert bytes(source.data("b")) == bytes([4, 5, 6, 7])


def test_data_that_overlaps_by_one_byte_is_refused(tmp_path: Path):
    with pytest.raises(FormatError, match="the data of tensors 'a' and 'b' overlap"):
        GGUF(two_vectors(tmp_path / "model.gguf", 3))
