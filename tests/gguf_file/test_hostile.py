"""Hostile files: each gives a `FormatError` with the file's name and the byte offset."""

from __future__ import annotations

import os
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from ggmodel.errors import FormatError
from ggmodel.gguf_file import GGUF, MissingFile

HUGE = 2**62


def _pair(p, value: bytes) -> bytes:
    """A file with the one key `k`, whose type number is at byte 33."""
    return p.file([("k", value)])


def _array(p, item: int, count: int, items: bytes = b"") -> bytes:
    return _pair(p, struct.pack("<IIQ", 9, item, count) + items)


def _one(p, shape: tuple[int, ...], kind: int, offset: int = 0, data: bytes = bytes(64)) -> bytes:
    """A file with the one tensor `t`, whose entry starts at byte 24."""
    return p.file([], [p.tensor("t", shape, kind, offset)], data)


def _two(p, offsets: tuple[int, int], names: tuple[str, str] = ("t", "u")) -> bytes:
    tensors = [p.tensor(n, (8,), 0, o) for n, o in zip(names, offsets, strict=True)]
    return p.file([], tensors, bytes(96))


def _aligned(p, value: bytes) -> bytes:
    return p.file([("general.alignment", value)], [p.tensor("t", (4,), 0, 0)], bytes(16))


def _deep(p, levels: int) -> bytes:
    return _pair(p, struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * levels + p.items("u8", [1]))


Make = Callable[..., bytes]
CASES: dict[str, tuple[Make, int, str]] = {
    # The fault: its bytes, the offset in the message, the message.
    "text": (lambda p: b"Hello, world", 0, "not a GGUF file"),
    "short": (lambda p: b"GG", 0, "not a GGUF file"),
    "magic only": (lambda p: b"GGUF", 4, "the version needs 4 bytes but the file has 0 left"),
    "ggml": (lambda p: b"lmgg" + bytes(40), 0, "a GGML file, from before GGUF"),
    "lfs": (lambda p: b"version https://git-lfs.github.com", 0, "git lfs pull"),
    "big-endian": (
        lambda p: b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        4,
        "the file is big-endian.*gguf-convert-endian FILE little",
    ),
    "version 0": (lambda p: p.file(version=0), 4, "version 0 is unknown"),
    "version 1": (lambda p: p.file(version=1), 4, "version 1 is obsolete"),
    "version 4": (lambda p: p.file(version=4), 4, "version 4 is unknown"),
    "many keys": (lambda p: p.file(n_pairs=HUGE), 16, "4611686018427387904 metadata keys do not"),
    "many tensors": (lambda p: p.file(n_tensors=2**64 - 1), 8, "18446744073709551615 tensors do"),
    "one key too many": (
        lambda p: p.file([("k", p.array("u8", bytes(16)))], n_pairs=2),
        65,
        "the length of metadata key 1 needs 8 bytes but the file has 0 left",
    ),
    "long key": (
        lambda p: p.file([("k", p.scalar("u8", 1))])[:24] + struct.pack("<Q", HUGE) + bytes(6),
        32,
        "metadata key 0 needs 4611686018427387904 bytes but the file has 6 left",
    ),
    "key not utf-8": (lambda p: p.file([(b"ab\xff", p.scalar("u8", 1))]), 34, "is not UTF-8"),
    "key twice": (lambda p: p.file([("k", p.scalar("u8", 1))] * 2), 38, "'k' occurs twice"),
    "value type": (lambda p: _pair(p, struct.pack("<II", 13, 0)), 33, "the type of .*'k' is 13"),
    "scalar cut": (
        lambda p: _pair(p, struct.pack("<II", 10, 0)),
        37,
        "needs 8 bytes but .* 4 left",
    ),
    "long string": (
        lambda p: _pair(p, struct.pack("<IQ", 8, 2**64 - 1)),
        45,
        "needs 18446744073709551615 bytes",
    ),
    "bool": (lambda p: _pair(p, p.scalar("bool", 2)), 37, "a bool must be 0 or 1, not 2"),
    "item type": (lambda p: _array(p, 13, 0), 37, "the item type of an array is 13"),
    "numbers": (lambda p: _array(p, 4, 3, bytes(11)), 49, "claims 3 items of type u32 .* 11 bytes"),
    "many numbers": (lambda p: _array(p, 12, HUGE), 49, "claims 4611686018427387904 items"),
    "many strings": (lambda p: _array(p, 8, HUGE), 49, "claims 4611686018427387904 items"),
    "many arrays": (lambda p: _array(p, 9, HUGE), 49, "claims 4611686018427387904 items"),
    "string in array": (
        lambda p: _array(p, 8, 3, p.string("ab") + struct.pack("<Q", HUGE) + bytes(8)),
        67,
        "a string in an array needs 4611686018427387904 bytes but the file has 8 left",
    ),
    "longest string in array": (
        lambda p: _array(p, 8, 2, struct.pack("<Q", 2**64 - 1) + bytes(8)),
        57,
        "a string in an array needs 18446744073709551615 bytes",
    ),
    "last string in array": (
        lambda p: _array(p, 8, 1, struct.pack("<Q", 3) + b"ab"),
        57,
        "a string in an array needs 3 bytes but the file has 2 left",
    ),
    "string length cut": (
        lambda p: _array(p, 8, 2, struct.pack("<Q", 7) + bytes(11)),
        64,
        "the length of a string in an array needs 8 bytes but the file has 4 left",
    ),
    "nested array cut": (
        lambda p: _array(p, 9, 2, p.items("u16", [1]) + struct.pack("<IQ", 4, 1)),
        75,
        "claims 1 items of type u32 but the file has 0 bytes",
    ),
    "nested nine deep": (lambda p: _deep(p, 8), 133, "nested deeper than 8"),
    "nested very deep": (lambda p: _deep(p, 50_000), 133, "nested deeper than 8"),
    "alignment 0": (lambda p: _aligned(p, p.scalar("u32", 0)), 49, "a power of two, not 0"),
    "alignment 48": (lambda p: _aligned(p, p.scalar("u32", 48)), 49, "a power of two, not 48"),
    "alignment -32": (lambda p: _aligned(p, p.scalar("i32", -32)), 49, "a power of two, not -32"),
    "alignment true": (lambda p: _aligned(p, p.scalar("bool", 1)), 49, "not True"),
    "alignment text": (lambda p: _aligned(p, p.scalar("string", "32")), 49, "not '32'"),
    "alignment list": (lambda p: _aligned(p, p.array("u32", [32])), 49, "not Array"),
    "alignment huge": (lambda p: _aligned(p, p.scalar("u64", 2**63)), 86, "would end at byte"),
    "name cut": (
        lambda p: p.file(n_tensors=1) + struct.pack("<Q", HUGE) + bytes(20),
        32,
        "the name of tensor 0 needs",
    ),
    "name not utf-8": (lambda p: p.file([], [p.tensor(b"\xc3", (1,), 0, 0)]), 32, "is not UTF-8"),
    "name twice": (lambda p: _two(p, (0, 32), ("t", "t")), 57, "tensor 't' occurs twice"),
    "five dims": (lambda p: _one(p, (1,) * 5, 0), 33, "has 5 dimensions; at most 4"),
    "2^32-1 dims": (
        lambda p: p.file([], [p.tensor("t", (1,), 0, 0, n_dims=2**32 - 1)], bytes(64)),
        33,
        "has 4294967295 dimensions",
    ),
    "dim 0": (lambda p: _one(p, (4, 0), 0), 37, r"shape \[4, 0\] has no elements"),
    "dims overflow": (
        lambda p: _one(p, (2**32, 2**32), 0),
        57,
        "would end at byte 737869762948382",
    ),
    "dims overflow to 0": (lambda p: _one(p, (2**63, 2, 2, 2), 0), 73, "would end at byte"),
    "row": (
        lambda p: _one(p, (33,), 8),
        24,
        "rows of 33 elements, but Q8_0 takes a multiple of 32",
    ),
    "row of K": (lambda p: _one(p, (32, 8), 12), 24, "but Q4_K takes a multiple of 256"),
    "type": (lambda p: _one(p, (4,), 43), 45, "the unknown type 43; .* newer than"),
    "type 2^32-1": (lambda p: _one(p, (4,), 2**32 - 1), 45, "the unknown type 4294967295"),
    "removed type": (lambda p: _one(p, (32,), 31), 45, "type 31, which ggml has removed"),
    "misaligned": (lambda p: _one(p, (4,), 0, 16), 49, "offset 16, which is no multiple .* 32"),
    "outside": (lambda p: _one(p, (4,), 0, 64), 49, "end at byte 144 but the file at 128"),
    "far outside": (lambda p: _one(p, (4,), 0, 2**64 - 32), 49, "would end at byte"),
    "one byte short": (lambda p: _one(p, (16,), 0)[:-1], 49, "end at byte 128 but the file at 127"),
    "same data": (lambda p: _two(p, (32, 32)), 128, "data of tensors 't' and 'u' overlap"),
    "overlap": (
        lambda p: p.file(
            [],
            [p.tensor("t", (8,), 0, 32), p.tensor("u", (9,), 0, 0)],
            bytes(64),
        ),
        128,
        "data of tensors 'u' and 't' overlap",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_with_name_and_byte(save, packer, case: str):
    make, at, message = CASES[case]
    path = save(make(packer))
    tracemalloc.start()
    with pytest.raises(FormatError) as e:
        GGUF(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    text = str(e.value)
    assert text.startswith(f"{path}: at byte {at}: ")
    assert re.search(message, text)
    assert len(text) < 600
    assert peak < 1e6


@pytest.mark.parametrize("item", range(13))
def test_tiny_file_that_declares_a_giant_array(save, packer, item: int):
    # gguf.GGUFReader loops over this one for ever.
    raw = packer.file([("", struct.pack("<IIQ", 9, item, HUGE))])
    assert len(raw) == 48
    with pytest.raises(FormatError, match="at byte 48: an array claims 4611686018427387904 items"):
        GGUF(save(raw))
    with pytest.raises(FormatError, match="at byte 40: the length of an array needs 8 bytes"):
        GGUF(save(raw[:45]))


@pytest.mark.parametrize("item", [8, 9])
def test_a_damaged_count_does_not_walk_through_the_tensors(save, packer, item: int):
    path = save(_array(packer, item, 2**24 + 1))
    os.truncate(path, 1 << 30)  # zeros, which take no room on disk
    with pytest.raises(FormatError, match=r"at byte 49: .* at most 16777216 are supported"):
        GGUF(path)


def test_long_names_do_not_fill_the_message(save, packer):
    raw = packer.file([("k" * 100_000, packer.scalar("u8", 1))] * 2)
    with pytest.raises(FormatError, match=r"\(100000 long\) occurs twice") as e:
        GGUF(save(raw))
    assert len(str(e.value)) < 600


def test_every_truncation_is_noticed(save, packer):
    path = save(packer.sample())
    with GGUF(path) as source:
        assert len(source.tensors) == 3
    for n in range(path.stat().st_size - 1, 0, -1):
        os.truncate(path, n)
        with pytest.raises(FormatError, match=r"model.gguf: at byte \d+: "):
            GGUF(path)


def test_a_bool_array_is_checked_when_read(save, packer):
    with GGUF(save(packer.file([("k", packer.array("bool", [1, 0, 3]))]))) as source:
        array = source.metadata["k"]
        assert array[:2] == [True, False]
        for read in (array.tolist, array.numpy, lambda: array[2], lambda: list(array)):
            with pytest.raises(FormatError, match=r"at byte 51: a bool must be 0 or 1, not 3"):
                read()


def test_missing(tmp_path: Path):
    with pytest.raises(MissingFile, match=r"none.gguf does not exist; check the path") as e:
        GGUF(tmp_path / "none.gguf")
    assert isinstance(e.value, FormatError)
    assert isinstance(e.value, FileNotFoundError)


def test_empty(save):
    with pytest.raises(FormatError, match=r"model.gguf is empty"):
        GGUF(save(b""))


def test_directory(tmp_path: Path):
    with pytest.raises(FormatError, match=r"is a directory; give the path of a .gguf file"):
        GGUF(tmp_path)


def test_path_through_a_file(save):
    with pytest.raises(FormatError, match="cannot be read: Not a directory"):
        GGUF(save(b"x") / "model.gguf")


def test_path_with_a_null():
    with pytest.raises(FormatError, match="cannot be read: embedded null"):
        GGUF("model\0.gguf")


def test_pipe_does_not_wait(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(FormatError, match="is not a regular file"):
        GGUF(path)
