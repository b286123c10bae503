"""Data that touches or overlaps by one byte, long names, and the metadata of several parts."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ggmodel.errors import FormatError
from ggmodel.gguf_file import GGUF
from ggmodel.gguf_file.buffer import quote


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


@pytest.mark.parametrize("count", [80, 81])
def test_names_of_80_characters_are_quoted_whole(count: int):
    whole = repr("a" * 80)
    assert quote("a" * count) == (whole if count == 80 else f"{whole}… (81 long)")


def test_the_types_of_metadata_are_those_of_the_first_part(tmp_path: Path):
    paths = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(paths):
        keys = {"split.no": number, "split.count": 2, "split.tensors.count": 2, f"own.{number}": 5}
        head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys))
        for key, value in keys.items():
            head += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IH", 2, value)
        head += struct.pack("<Q", 1) + b"ab"[number : number + 1]
        head += struct.pack("<IQIQ", 1, 1, 0, 0)
        path.write_bytes(head + bytes(-len(head) % 32) + bytes(4))
    with GGUF(paths[0]) as source:
        assert source.metadata_types.keys() == source.metadata.keys()
        assert source.metadata_types["own.0"] == "u16"
        assert list(source.tensors) == ["a", "b"]
