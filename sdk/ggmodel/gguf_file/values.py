"""Metadata values: GGUF's scalar types, `Array`, which decodes lazily, and hyperparameters.

Strings that are not UTF-8 (token pieces of byte-level vocabularies, mostly) decode with
`surrogateescape`: nothing is lost, and `text.encode("utf-8", "surrogateescape")` gives the bytes
back. `Array.raw` and `Array.bytes_at` give the bytes directly.

Hyperparameters are keys with the architecture's prefix and checked types.
"""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from ..errors import ConfigError, FormatError, Unsupported
from .buffer import U64, Buffer

if TYPE_CHECKING:
    import numpy as np

# ggml itself reads no nested arrays; the limit keeps hostile files from exhausting the stack.
MAX_DEPTH = 8
# Strings and nested arrays are read one by one. A damaged count could make that read gigabytes of
# tensor data; the largest vocabularies have 2^18 strings.
MAX_WALK = 1 << 24
_MANY = 256  # strings from which on numpy pays; a tool that only looks need not import it


class ValueType(NamedTuple):
    """A type of metadata values.

    Attributes:
        number: as in the file.
        name: "u8" … "f64", "bool", "string" or "array".
        code: letter of the struct module, "" for strings and arrays.
        size: bytes of a value; for strings and arrays the fewest possible.
    """

    number: int
    name: str
    code: str
    size: int


VALUE_TYPES: dict[int, ValueType] = {
    t.number: t
    for t in (
        ValueType(0, "u8", "B", 1),
        ValueType(1, "i8", "b", 1),
        ValueType(2, "u16", "H", 2),
        ValueType(3, "i16", "h", 2),
        ValueType(4, "u32", "I", 4),
        ValueType(5, "i32", "i", 4),
        ValueType(6, "f32", "f", 4),
        ValueType(7, "bool", "B", 1),
        ValueType(8, "string", "", 8),
        ValueType(9, "array", "", 12),
        ValueType(10, "u64", "Q", 8),
        ValueType(11, "i64", "q", 8),
        ValueType(12, "f64", "d", 8),
    )
}
BY_NAME: dict[str, ValueType] = {t.name: t for t in VALUE_TYPES.values()}


class Array(Sequence[Any]):
    """An array of metadata: a read-only sequence that decodes on access.

    Items are int, float, bool, str or (nested) `Array`; a slice is a list. It equals any list,
    tuple or `Array` with equal items. Reading after the file was closed raises `ggmodel.Error`.

    Attributes:
        dtype: name of the item type: "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32",
            "f64", "bool", "string" or "array".
    """

    __slots__ = ("_buffer", "_count", "_depth", "_start", "_starts", "_type", "dtype")

    def __init__(
        self,
        buffer: Buffer,
        item: ValueType,
        count: int,
        start: int,
        depth: int,
        starts: array[int],
    ):
        """`count` items from byte `start`, checked by `array_at`. `starts` are the offsets of each
        string or nested array, and the end: [n + 1]."""
        self.dtype = item.name
        self._buffer = buffer
        self._type = item
        self._count = count
        self._start = start
        self._depth = depth
        self._starts = starts

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._item(i) for i in range(*index.indices(self._count))]
        return self._item(self._position(index))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Array, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and self._items() == list(other)

    def __repr__(self) -> str:
        return f"Array({self.dtype}, {self._count} items)"

    def tolist(self) -> list[Any]:
        """All items as Python values; nested arrays become nested lists.

        Raises:
            FormatError: a bool is neither 0 nor 1.
        """
        return [a.tolist() for a in self] if self.dtype == "array" else self._items()

    def numpy(self) -> np.ndarray:
        """The numbers as a read-only array [n] of the type of `dtype`.

        It is a copy, which stays valid after the file is closed.

        Raises:
            Unsupported: the items are strings or arrays.
            FormatError: a bool is neither 0 nor 1.
        """
        if not self._type.code:
            raise Unsupported(f"an array of {self.dtype} has no numpy form; use tolist() or raw()")
        import numpy as np

        values = np.frombuffer(self._numbers(), "<" + self._type.code)
        if self.dtype == "bool":
            if self._count and values.max() > 1:
                raise self._bad_bool(int(values.argmax()))
            values = values.view(np.bool_)
        return values

    def bytes_at(self, index: int) -> bytes:
        """The bytes of string `index`; raises `Unsupported` if the items are not strings."""
        starts = self._string_starts()
        i = self._position(index)
        at, n = starts[i] + 8, starts[i + 1] - starts[i] - 8
        data, start = self._buffer.near(at, n)
        return data[start : start + n]

    def raw(self) -> list[bytes]:
        """The bytes of all strings; raises `Unsupported` if the items are not strings."""
        starts = self._string_starts()
        blob = self._buffer.read(self._start, starts[-1] - self._start)
        base = self._start
        return [blob[a - base + 8 : b - base] for a, b in pairwise(starts)]

    def _position(self, index: int) -> int:
        i = operator.index(index)
        if not -self._count <= i < self._count:
            raise IndexError(f"index {i} of an array of {self._count}")
        return i % self._count

    def _item(self, i: int) -> Any:
        if self.dtype == "string":
            return text(self.bytes_at(i))
        if self.dtype == "array":
            return array_at(self._buffer, self._starts[i], self._depth + 1)[0]
        return read_scalar(self._buffer, self._type, self._start + i * self._type.size)

    def _items(self) -> list[Any]:
        if self.dtype == "string":
            return self._texts()
        if self.dtype == "array":
            return [self._item(i) for i in range(self._count)]
        values = struct.unpack(f"<{self._count}{self._type.code}", self._numbers())
        if self.dtype != "bool":
            return list(values)
        for i, v in enumerate(values):
            if v > 1:
                raise self._bad_bool(i)
        return [v == 1 for v in values]

    def _texts(self) -> list[str]:
        """All strings, decoded in one piece: the last byte of each length is a zero and separates
        them; the bytes before it are dropped."""
        import numpy as np

        starts = np.frombuffer(self._string_starts(), np.uint64).astype(np.int64)
        starts -= self._start
        blob = np.frombuffer(self._buffer.read(self._start, int(starts[-1])), np.uint8)
        keep = np.ones(len(blob), np.bool_)
        for i in range(7):
            keep[starts[:-1] + i] = False
        texts = text(blob[keep].tobytes()).split("\0")[1:]
        # A string may itself contain zeros.
        return texts if len(texts) == self._count else [text(s) for s in self.raw()]

    def _bad_bool(self, i: int) -> FormatError:
        at = self._start + i
        return self._buffer.error(at, f"a bool must be 0 or 1, not {self._buffer.read(at, 1)[0]}")

    def _numbers(self) -> bytes:
        return self._buffer.read(self._start, self._count * self._type.size)

    def _string_starts(self) -> array[int]:
        if self.dtype != "string":
            raise Unsupported(f"an array of {self.dtype} has no strings; use tolist() or numpy()")
        return self._starts


def text(raw: bytes) -> str:
    """A string value; see the module's docstring for bytes that are not UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


def read_value(buffer: Buffer, at: int, what: str) -> tuple[Any, str, int]:
    """The value of metadata `what`, whose type number is at `at`.

    Returns:
        The value, the name of its type and the offset after it.
    """
    kind = value_type(buffer, at, f"the type of {what}")
    at += 4
    if kind.name == "string":
        raw = buffer.string(at, what)
        return text(raw), kind.name, at + 8 + len(raw)
    if kind.name == "array":
        value, end = array_at(buffer, at, 1)
        return value, kind.name, end
    buffer.need(at, kind.size, what)
    return read_scalar(buffer, kind, at), kind.name, at + kind.size


def value_type(buffer: Buffer, at: int, what: str) -> ValueType:
    """The type whose number stands at an offset.

    Raises:
        FormatError: GGUF has no such type.
    """
    number = buffer.u32(at, what)
    kind = VALUE_TYPES.get(number)
    if kind is None:
        raise buffer.error(
            at, f"{what} is {number}; GGUF has the types 0 to 12; the file is damaged"
        )
    return kind


def read_scalar(buffer: Buffer, kind: ValueType, at: int) -> int | float | bool:
    """The number at an offset.

    Raises:
        FormatError: a bool is neither 0 nor 1.
    """
    value = struct.unpack_from("<" + kind.code, *buffer.near(at, kind.size))[0]
    if kind.name != "bool":
        return value
    if value > 1:
        raise buffer.error(at, f"a bool must be 0 or 1, not {value}")
    return value == 1


def array_at(buffer: Buffer, at: int, depth: int) -> tuple[Array, int]:
    """The array whose item type and count are at `at`, completely checked, and the offset after it.

    Args:
        depth: 1 for an array that is no item of another.
    """
    item = value_type(buffer, at, "the item type of an array")
    count, start = buffer.u64(at + 4, "the length of an array"), at + 12
    _check_count(buffer, item, count, start, depth)
    starts, end = array("Q", [start]), start + count * item.size
    if item.name == "string":
        # Loading a model reads the strings next: this pass over a vocabulary is the only one.
        end = _walk_strings(buffer, count, starts)
    elif item.name == "array":
        for _ in range(count):
            starts.append(array_at(buffer, starts[-1], depth + 1)[1])
        end = starts[-1]
    return Array(buffer, item, count, start, depth, starts), end


def _check_count(buffer: Buffer, item: ValueType, count: int, start: int, depth: int) -> None:
    """Bounds the loops over items by the bytes of the file."""
    if count > (buffer.size - start) // item.size:
        raise buffer.error(
            start,
            f"an array claims {count} items of type {item.name} but the file has "
            f"{buffer.size - start} bytes left; it is truncated or damaged",
        )
    if not item.code and count > MAX_WALK:
        raise buffer.error(
            start,
            f"an array claims {count} items of type {item.name}; at most {MAX_WALK} are supported; "
            "the file is probably damaged",
        )
    if item.name == "array" and depth >= MAX_DEPTH:
        raise buffer.error(start, f"arrays are nested deeper than {MAX_DEPTH}")


def _walk_strings(buffer: Buffer, count: int, starts: array[int]) -> int:
    """Adds the offsets after each string to `starts`; returns the last one."""
    # The only hot loop: a vocabulary has 262,144 strings. unpack_from does the checks: it fails at
    # the end of the bytes at hand, and the culprit is searched only at the end of the file.
    unpack, at, add = U64.unpack_from, starts[0], starts.append
    while len(starts) <= count and at + 8 <= buffer.size:
        data, here = buffer.near(at, 8)
        base = at - here
        if (left := count + 1 - len(starts)) >= _MANY and "numpy" in sys.modules:
            starts.frombytes((_ends(data, here, left) + base).tobytes())
            here = starts[-1] - base
        try:
            for _ in range(count + 1 - len(starts)):
                here += 8 + unpack(data, here)[0]
                add(base + here)
        except struct.error:
            pass
        except OverflowError:
            break
        at = starts[-1]
    if at > buffer.size or len(starts) <= count:
        raise _string_error(buffer, starts[0])
    return at


def _ends(data: bytes, here: int, most: int) -> np.ndarray:
    """The places behind the strings from `here` on, as far as they are found without a loop: all
    but the last, unless one of them is empty, longer than 255 bytes or full of zeros.

    A short length is a byte that seven zeros follow. A byte in a text may look like one, so only
    those count that lead from one to the next.
    """
    import numpy as np

    raw = np.frombuffer(data, np.uint8, offset=here)
    filled = np.flatnonzero(raw)
    begins = filled[:-1][np.diff(filled) >= 8][:most]
    ends = begins + 8 + raw[begins]
    wrong = np.flatnonzero(begins != np.concatenate(([0], ends[:-1]))[: len(begins)])
    return ends[: wrong[0] if len(wrong) else None].astype(np.uint64) + here


def _string_error(buffer: Buffer, at: int) -> FormatError:
    """The error for the first string from `at` on that runs past the end."""
    try:
        while True:  # ends: each round goes on by 8 bytes or more, and the file is finite
            length = buffer.u64(at, "the length of a string in an array")
            buffer.need(at + 8, length, "a string in an array")
            at += 8 + length
    except FormatError as e:
        return e


_GLOBAL = ("tokenizer.", "general.", "xielu.")
_KINDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list"}


class KeyValues:
    """The metadata of a source, looked up as `<architecture>.<key>` unless the key is global."""

    def __init__(self, metadata: Mapping[str, Any], name: str = "metadata"):
        self.metadata = metadata
        self.name = name

    @property
    def architecture(self) -> str:
        """`general.architecture`.

        Raises:
            ConfigError: missing or no string.
        """
        value = self.get("general.architecture", str)
        if value is None:
            raise ConfigError(
                f"{self.name} has no metadata key 'general.architecture', so no model can be "
                "chosen; is this a vocabulary or an adapter?"
            )
        return value

    def full(self, key: str) -> str:
        """The key with its prefix, as in the file."""
        return key if key.startswith(_GLOBAL) else f"{self.architecture}.{key}"

    def get(self, key: str, kind: type) -> Any:
        """The value of a key as `kind`, or None if it is absent.

        An integer serves as a number, a whole number as an integer, and a scalar as a list.

        Raises:
            ConfigError: the value has another type; names key, expected and found type.
        """
        for name in (self.full(key), key):
            if name in self.metadata:
                return check_kind(name, self.metadata[name], kind, self.name)
        return None


def check_kind(key: str, value: Any, kind: type, where: str, what: str = "key") -> Any:
    """`value` as `kind`; see `KeyValues.get`. `what` the key is, for the message."""
    scalar = isinstance(value, (bool, int, float, str))
    if kind is list:
        return [value] if scalar else list(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        with suppress(OverflowError):  # JSON has numbers of any length
            return float(value)
    if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if scalar and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    holds = type(value).__name__ if scalar else "a list"
    raise ConfigError(
        f"{where}: {what} {key!r} must be {_KINDS[kind]}, but holds {holds} ({value!r:.40})"
    )
