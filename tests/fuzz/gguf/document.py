"""GGUF files in pieces that can be changed one by one, and put together again.

Independent of the reader: what is wrong stays wrong.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ggmodel.gguf_file import Array, DType, TensorSource
from tests.gguf_file.conftest import NUMBERS

ALIGNMENT = 32
STRING, ARRAY = 8, 9
CODES = dict(NUMBERS.values())
_KINDS = {kind: number for kind, (number, _) in NUMBERS.items()} | {"string": STRING}
_TYPES = {int(t): t for t in DType}


class Pair(NamedTuple):
    """A key and its value: the number of its type, and its bytes."""

    key: bytes
    kind: int
    value: bytes

    def pack(self) -> bytes:
        size = len(self.key)
        return struct.pack(f"<Q{size}sI", size, self.key, self.kind) + self.value


class Entry(NamedTuple):
    """A tensor of the index, with the bytes of its data."""

    name: bytes
    shape: tuple[int, ...]
    kind: int
    offset: int
    data: bytes | memoryview = b""

    @property
    def nbytes(self) -> int:
        """Bytes of data that shape and type ask for; those it has where they make no sense."""
        dtype = _TYPES.get(self.kind)
        if dtype is None or not self.shape or self.shape[0] % dtype.block_size:
            return len(self.data)
        count = 1
        for n in self.shape:
            count *= n
        return count // dtype.block_size * dtype.type_size

    def pack(self) -> bytes:
        size, dims = len(self.name), len(self.shape)
        return struct.pack(
            f"<Q{size}sI{dims}QIQ",
            size, self.name, dims, *(n % (1 << 64) for n in self.shape),
            self.kind % (1 << 32), self.offset % (1 << 64),
        )  # fmt: skip


@dataclass
class Document:
    """A file.

    Attributes:
        counts: of tensors and keys, where the header does not say how many there are.
        size: bytes of data; what the tensors do not fill is zero.
    """

    pairs: list[Pair]
    entries: list[Entry]
    size: int = 0
    version: int = 3
    magic: bytes = b"GGUF"
    counts: tuple[int | None, int | None] = (None, None)

    def copy(self) -> Document:
        return replace(self, pairs=list(self.pairs), entries=list(self.entries))

    def lay_out(self, most: int = 1 << 24) -> None:
        """Gives all tensors data where they belong, as their shapes and types ask for."""
        entries, at = [], 0
        for e in self.entries:
            n = e.nbytes
            if 0 <= n <= most and n != len(e.data):
                e = e._replace(data=bytes(e.data[:n]).ljust(n, b"\x11"))
            entries.append(e._replace(offset=at))
            at += -(-len(e.data) // ALIGNMENT) * ALIGNMENT
        self.entries, self.size = entries, at

    def head(self) -> bytes:
        """Everything before the data."""
        tensors, keys = self.counts
        parts = [
            self.magic,
            struct.pack(
                "<IQQ",
                self.version,
                len(self.entries) if tensors is None else tensors % (1 << 64),
                len(self.pairs) if keys is None else keys % (1 << 64),
            ),
            *(pair.pack() for pair in self.pairs),
            *(entry.pack() for entry in self.entries),
        ]
        head = b"".join(parts)
        return head + bytes(-len(head) % ALIGNMENT)

    def whole(self) -> bytes:
        """Head and data."""
        data = bytearray(self.size)
        for e in self.entries:
            if e.offset + len(e.data) <= self.size:
                data[e.offset : e.offset + len(e.data)] = e.data
        return self.head() + data


def document(source: TensorSource) -> Document:
    """The document of a model."""
    pairs = [Pair(key.encode(), *encoded(value)) for key, value in source.metadata.items()]
    entries = [
        Entry(name.encode(), t.shape, int(t.dtype), 0, bytes(source.data(name)))
        for name, t in source.tensors.items()
    ]
    made = Document(pairs, entries)
    made.lay_out()
    return made


def encoded(value: Any) -> tuple[int, bytes]:
    """The type's number and the bytes of a value of metadata."""
    if isinstance(value, bool):
        return 7, bytes([value])
    if isinstance(value, int):
        number, code = NUMBERS["u32" if 0 <= value < 1 << 32 else "i64"]
        return number, struct.pack("<" + code, value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, Array):
        return ARRAY, items(value)
    return STRING, string(value if isinstance(value, bytes) else value.encode())


def string(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def items(array: Array) -> bytes:
    """An array: type of the items, their number, the items."""
    if array.dtype == "array":
        body = b"".join(items(one) for one in array)
        return struct.pack("<IQ", ARRAY, len(array)) + body
    number = _KINDS[array.dtype]
    if number == STRING:
        body = b"".join(string(raw) for raw in array.raw())
    else:
        body = struct.pack(f"<{len(array)}{CODES[number]}", *array)
    return struct.pack("<IQ", number, len(array)) + body
