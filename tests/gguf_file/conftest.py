"""Packs GGUF files by hand, wrong ones included.

Independent of the reader and of the `gguf` package: the tests trust `struct` alone.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

NUMBERS = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "B"),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}


class Packer:
    """Pieces of a GGUF file as bytes."""

    @staticmethod
    def string(text: str | bytes) -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        return struct.pack("<Q", len(raw)) + raw

    @classmethod
    def scalar(cls, kind: str, value: Any) -> bytes:
        if kind == "string":
            return struct.pack("<I", 8) + cls.string(value)
        number, code = NUMBERS[kind]
        return struct.pack("<I" + code, number, value)

    @classmethod
    def items(cls, kind: str, values: Any) -> bytes:
        """An array without the type number 9 before it: item type, count, items."""
        if kind == "string":
            return struct.pack("<IQ", 8, len(values)) + b"".join(map(cls.string, values))
        number, code = NUMBERS[kind]
        return struct.pack(f"<IQ{len(values)}{code}", number, len(values), *values)

    @classmethod
    def array(cls, kind: str, values: Any) -> bytes:
        return struct.pack("<I", 9) + cls.items(kind, values)

    @staticmethod
    def nested(*inner: bytes) -> bytes:
        """An array of arrays, each given by `items` or `nested`[4:]."""
        return struct.pack("<IIQ", 9, 9, len(inner)) + b"".join(inner)

    @classmethod
    def tensor(
        cls,
        name: str | bytes,
        shape: tuple[int, ...],
        kind: int,
        offset: int,
        n_dims: int | None = None,
    ) -> bytes:
        dims = len(shape) if n_dims is None else n_dims
        return (
            cls.string(name)
            + struct.pack(f"<I{len(shape)}Q", dims, *shape)
            + struct.pack("<IQ", kind, offset)
        )

    @classmethod
    def file(
        cls,
        pairs: list[tuple[str | bytes, bytes]] | None = None,
        tensors: list[bytes] | None = None,
        data: bytes = b"",
        version: int = 3,
        alignment: int = 32,
        n_pairs: int | None = None,
        n_tensors: int | None = None,
    ) -> bytes:
        pairs, tensors = pairs or [], tensors or []
        head = b"GGUF" + struct.pack(
            "<IQQ",
            version,
            len(tensors) if n_tensors is None else n_tensors,
            len(pairs) if n_pairs is None else n_pairs,
        )
        head += b"".join(cls.string(k) + v for k, v in pairs) + b"".join(tensors)
        return head + bytes(-len(head) % alignment) + data if data else head

    @classmethod
    def sample(cls) -> bytes:
        """A valid file with all value types and three tensors; ends with the last tensor's data."""
        scalars = [(f"s.{k}", cls.scalar(k, 1)) for k in NUMBERS]
        arrays = [(f"a.{k}", cls.array(k, [1, 0, 1])) for k in NUMBERS]
        return cls.file(
            [
                ("general.architecture", cls.scalar("string", "test")),
                *scalars,
                *arrays,
                ("a.string", cls.array("string", ["a", b"\xff\xfe", "", "größer"])),
                (
                    "a.array",
                    cls.nested(cls.items("i32", [1, 2]), cls.items("string", ["x"])),
                ),
            ],
            [
                cls.tensor("a.weight", (4, 2), 0, 0),
                cls.tensor("b.weight", (32,), 8, 32),
                cls.tensor("c.weight", (3, 1, 1, 1), 1, 96),
            ],
            bytes(range(102)),
        )


@pytest.fixture(scope="session")
def packer() -> type[Packer]:
    return Packer


@pytest.fixture
def save(tmp_path: Path):
    """save(bytes, name="model.gguf") writes a file and returns its path."""

    def write(raw: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(raw)
        return path

    return write
