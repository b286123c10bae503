"""Mutated files give values or a `FormatError`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmodel.errors import FormatError
from ggmodel.gguf_file import GGUF, Array

EXAMPLES = settings(max_examples=300, deadline=None)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One path for all examples; hypothesis allows no fixtures of a function's scope."""
    return tmp_path_factory.mktemp("fuzz") / "model.gguf"


def _read_array(array: Array) -> None:
    n = len(array)
    for read in (array.tolist, lambda: list(array), lambda: array[n // 2]):
        try:
            read()
        except FormatError:
            assert array.dtype in ("bool", "array")
        except IndexError:
            assert n == 0
    if array.dtype == "string":
        assert array.raw() == [array.bytes_at(i) for i in range(n)]
        assert [s.encode("utf-8", "surrogateescape") for s in array] == array.raw()
    elif array.dtype == "array":
        for inner in array:
            _read_array(inner)
    elif array.dtype != "bool":
        assert np.array_equal(array.numpy(), array.tolist(), equal_nan=array.dtype[0] == "f")


def _open_and_read_everything(path: Path, raw: bytes) -> bool:
    """True if it could be opened."""
    # In place: emptying a file first makes ext4 write it to the disk each time.
    with open(path, "r+b" if path.exists() else "xb") as file:
        file.write(raw)
        file.truncate()
    source, refusal = None, ""
    try:
        source = GGUF(path)
    except FormatError as e:
        refusal = str(e)
    if source is None:
        assert str(path) in refusal
        return False
    with source:
        for value in source.metadata.values():
            if isinstance(value, Array):
                _read_array(value)
            else:
                assert isinstance(value, (bool, int, float, str))
        for name, t in source.tensors.items():
            data = source.data(name)
            assert len(data) == t.nbytes == t.n_elements // t.dtype.block_size * t.dtype.type_size
            assert data.tobytes() == raw[t.offset : t.offset + t.nbytes]
    return True


@EXAMPLES
@given(data=st.data())
def test_flipped_bytes(target: Path, packer, data: st.DataObject):
    raw = bytearray(packer.sample())
    flips = st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255))
    for at, value in data.draw(st.lists(flips, min_size=1, max_size=8)):
        raw[at] = value
    _open_and_read_everything(target, bytes(raw))


@EXAMPLES
@given(data=st.data())
def test_spliced_pieces(target: Path, packer, data: st.DataObject):
    raw = packer.sample()
    place = st.integers(0, len(raw))
    a, b, c, d = (data.draw(place) for _ in range(4))
    extra = data.draw(st.binary(max_size=32))
    _open_and_read_everything(target, raw[:a] + extra + raw[min(b, c) : max(b, c)] + raw[d:])


@EXAMPLES
@given(data=st.data())
def test_planted_integers(target: Path, packer, data: st.DataObject):
    """Lengths, counts, types, sizes and offsets that are nearly right, or far off."""
    raw = bytearray(packer.sample())
    for _ in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.sampled_from([4, 8]))
        at = data.draw(st.integers(4, len(raw) - size))
        old = int.from_bytes(raw[at : at + size], "little")
        top = 1 << 8 * size
        near = st.integers(-33, 33).map(lambda step, old=old, top=top: (old + step) % top)
        edge = st.sampled_from([0, 1, top // 2 - 1, top // 2, top - 1, top // 16, len(raw)])
        raw[at : at + size] = data.draw(near | edge).to_bytes(size, "little")
    _open_and_read_everything(target, bytes(raw))


@EXAMPLES
@given(tail=st.binary(max_size=300), whole=st.booleans())
def test_anything_after_the_magic(target: Path, tail: bytes, whole: bool):
    head = b"GGUF\x03\0\0\0" if whole else b"GGUF"
    _open_and_read_everything(target, head + tail)


def test_every_byte_of_the_header(target: Path, packer):
    """Every byte set to 0xFF in turn, and to one more: independent of chance."""
    raw = packer.sample()
    opened = [
        _open_and_read_everything(target, raw[:at] + bytes([value]) + raw[at + 1 :])
        for at in range(len(raw) - 102)
        for value in (0xFF, (raw[at] + 1) % 256)
    ]
    # Both must happen often, or the test is void.
    assert 0.2 < sum(opened) / len(opened) < 0.8


def test_the_sample_itself_is_read(target: Path, packer):
    target.write_bytes(packer.sample())
    with GGUF(target) as source:
        assert len(source.metadata) == 25
        assert len(source.tensors) == 3
    assert _open_and_read_everything(target, packer.sample())
