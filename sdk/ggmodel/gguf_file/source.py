"""Tensor sources: the metadata and tensors of a model, from files or from memory.

Memory sources encode Python values as metadata, which gives the same types as files.
"""

from __future__ import annotations

import difflib
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, FormatError, LoadError, TensorError
from ..resources import Closing
from .buffer import U32, U64, Buffer
from .types import DType
from .values import BY_NAME, MAX_DEPTH, Array, array_at

if TYPE_CHECKING:
    import numpy as np


def encode_value(key: str, value: Any) -> Any:
    """`value` in a reader's form: int, float, bool, str or `Array`."""
    kind = _kind(value)
    if kind == "array":
        return array_at(Buffer(key, _pack(key, value, 1)), 0, 1)[0]
    if kind == "none" or isinstance(value, bytes):
        raise ConfigError(f"metadata {key!r}: GGUF has no type for {type(value).__name__}")
    return value.item() if hasattr(value, "ndim") else value


def _kind(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        return "string"
    if hasattr(value, "ndim"):  # an array or scalar of numpy
        if value.ndim:
            return "array"
        value = value.item()
    for kind, of in (("bool", bool), ("int", int), ("float", float), ("array", Sequence)):
        if isinstance(value, of):
            return kind
    return "none"


def _pack(key: str, values: Any, depth: int) -> bytes:
    """An array as GGUF stores it: item type (u32), count (u64), items."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"metadata {key!r}: arrays are nested deeper than {MAX_DEPTH}")
    if isinstance(values, Array) and values.dtype not in ("string", "array"):
        values = values.numpy()
    name, items = _typed(key, values, depth)
    return U32.pack(BY_NAME[name].number) + U64.pack(len(values)) + items


def _typed(key: str, values: Any, depth: int) -> tuple[str, bytes]:
    """The item type and the items' bytes."""
    if getattr(values, "ndim", 0) == 1:
        return _typed_numpy(key, values)
    kinds = {_kind(v) for v in values}
    if kinds == {"string"}:
        raw = [v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in values]
        return "string", b"".join(U64.pack(len(r)) + r for r in raw)
    if kinds == {"array"}:
        return "array", b"".join(_pack(key, v, depth + 1) for v in values)
    if kinds == {"bool"}:
        return "bool", bytes(bool(v) for v in values)
    if kinds <= {"int"}:
        return _typed_ints(key, values)
    if kinds <= {"int", "float"}:
        return "f64", struct.pack(f"<{len(values)}d", *values)
    raise ConfigError(
        f"metadata {key!r}: the items of an array must have one type of GGUF, "
        f"not {', '.join(sorted({type(v).__name__ for v in values}))}"
    )


def _typed_ints(key: str, values: Sequence[int]) -> tuple[str, bytes]:
    name = "i64" if all(v < 1 << 63 for v in values) else "u64"
    try:
        return name, struct.pack(f"<{len(values)}{BY_NAME[name].code}", *values)
    except struct.error:
        raise ConfigError(f"metadata {key!r}: an integer does not fit into 64 bits") from None


def _typed_numpy(key: str, values: Any) -> tuple[str, bytes]:
    kind = values.dtype.kind
    name = "bool" if kind == "b" else f"{kind}{values.dtype.itemsize * 8}"
    if name not in BY_NAME:
        raise ConfigError(f"metadata {key!r}: GGUF has no type for numpy's {values.dtype}; cast it")
    return name, values.astype(values.dtype.newbyteorder("<")).tobytes()


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's index entry.

    Attributes:
        name: in the file.
        shape: in ggml's order: dimension 0 varies fastest; trailing ones as in the file.
        dtype: type of the elements.
        nbytes: bytes of the data.
        file: index into `files` of the source.
        offset: first byte of the data in that file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    nbytes: int
    file: int
    offset: int

    @property
    def n_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)


class TensorSource(Closing, ABC):
    """Metadata and tensors of one model; a context manager that closes itself.

    Attributes:
        name: for messages, usually the path.
        files: the files of the tensors.
        metadata: key to int, float, bool, str or `Array`; cannot be modified.
        tensors: name to `TensorInfo`, in file order; cannot be modified.
        unread: tensors of a checkpoint behind this source that none of `tensors` is made of, and
            the field of the model that reads the nearest name ("" for none).
        unread_keys: hyperparameters of a checkpoint behind this source that count and that nobody
            reads, and a line for each: its value, and what is supported.
    """

    name: str
    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    unread: Mapping[str, str] = MappingProxyType({})
    unread_keys: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def data(self, name: str) -> memoryview:
        """The bytes of a tensor [nbytes], read-only and not copied. If its file changes, so do
        they, or they become zeros: `release` and `check_unchanged` tell.

        Raises:
            LoadError: there is no such tensor; the message has the nearest names.
            Error: the source was closed.
        """

    @abstractmethod
    def mapped(self, file: int) -> memoryview | None:
        """The mapped bytes of file number `file`; None if it has no mapping and must be copied.

        Raises:
            Error: the source was closed.
        """

    def release(self, name: str) -> None:
        """Lets a tensor's bytes of a mapped file leave memory until the next access.

        Raises:
            FormatError: the file has changed since it was opened; the bytes may be wrong.
        """

    def check_unchanged(self, files: Iterable[int] | None = None) -> None:
        """Compares size and time of modification of the files with those when they were opened, and
        a sample of the content where a mapped file has another time alone. It takes some
        microseconds a file, also works after `close` while views are left, and never succeeds again
        once it has failed.

        Args:
            files: their numbers; None is all.

        Raises:
            FormatError: a file has changed; names it.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the files; closing twice does nothing.

        Earlier views and arrays stay valid, and keep their file mapped. Scalars of the metadata and
        the tensor index stay readable; `data`, `mapped` and metadata arrays raise `ggmodel.Error`.
        """

    def info(self, name: str) -> TensorInfo:
        """The index entry of a tensor.

        Raises:
            LoadError: there is no such tensor; the message has the nearest names.
        """
        entry = self.tensors.get(name)
        if entry is None:
            near = difflib.get_close_matches(name, self.tensors, 3)
            hint = f"the nearest names are {', '.join(near)}" if near else "no name is similar"
            raise LoadError(f"{self.name} has no tensor {name!r}; {hint}")
        return entry

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self.tensors)} tensors)"


class MemorySource(TensorSource):
    """A source of Python values, for tests and converters.

    Args:
        metadata: key to bool, int, float, str, or a list, tuple, numpy array or `Array` of one
            kind of these (lists may be nested, strings may be bytes). Lists become `Array`: of
            "i64" ("u64" where needed) for int, of "f64" for float; a numpy array keeps its type.
        tensors: name to a numpy array, whose shape is reversed into ggml's order, or to
            (dtype, shape in ggml's order, bytes). Contiguous little-endian arrays are not copied:
            do not write to them afterwards.
        name: for messages.

    Raises:
        ConfigError: a metadata value has no GGUF type.
        TensorError: an array has no ggml type, more than four dimensions or no elements, or the
            number of bytes does not fit the shape.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, np.ndarray | tuple[DType, tuple[int, ...], bytes]],
        name: str = "memory",
    ):
        self.name = name
        self.files = (Path(name),)
        self.metadata = MappingProxyType({k: encode_value(k, v) for k, v in metadata.items()})
        self._data: dict[str, memoryview] = {}
        index: dict[str, TensorInfo] = {}
        for key, value in tensors.items():
            dtype, shape, data = _from_array(key, value) if not isinstance(value, tuple) else value
            self._data[key] = memoryview(data).cast("B").toreadonly()
            index[key] = _checked(key, dtype, tuple(shape), self._data[key].nbytes)
        self.tensors = MappingProxyType(index)

    def data(self, name: str) -> memoryview:
        return self._data[self.info(name).name]

    def mapped(self, file: int) -> memoryview | None:
        return None

    def close(self) -> None:
        """Does nothing: the arrays belong to the caller."""


class JoinedSource(TensorSource):
    """A model and its projector (mmproj) as one source.

    It has the tensors of both, the metadata of the first, and the keys of the second that the first
    lacks, except `general.*` and `split.*`, which describe a file. In practice these are `clip.*`.
    Files of the second are numbered after those of the first. Closing closes both.

    Raises:
        FormatError: both have a tensor of the same name.
    """

    def __init__(self, first: TensorSource, second: TensorSource):
        both = [n for n in second.tensors if n in first.tensors]
        if both:
            raise FormatError(
                f"{first.name} and {second.name} both have a tensor {both[0]!r} "
                f"({len(both)} in common); is {second.name} a projector (mmproj) file?"
            )
        shift = len(first.files)
        joined = {k: v for k, v in second.metadata.items() if not k.startswith(_OF_A_FILE)}
        self.first = first
        self.second = second
        self.name = f"{first.name} + {second.name}"
        self.files = first.files + second.files
        self.metadata = MappingProxyType({**joined, **first.metadata})
        shifted = {n: replace(t, file=t.file + shift) for n, t in second.tensors.items()}
        self.tensors = MappingProxyType({**first.tensors, **shifted})
        self.unread = MappingProxyType({**first.unread, **second.unread})
        self.unread_keys = MappingProxyType({**first.unread_keys, **second.unread_keys})

    def data(self, name: str) -> memoryview:
        owner = self.first if name in self.first.tensors else self.second
        return owner.data(self.info(name).name)

    def mapped(self, file: int) -> memoryview | None:
        shift = len(self.first.files)
        return self.first.mapped(file) if file < shift else self.second.mapped(file - shift)

    def release(self, name: str) -> None:
        owner = self.first if name in self.first.tensors else self.second
        owner.release(name)

    def check_unchanged(self, files: Iterable[int] | None = None) -> None:
        if files is None:
            self.first.check_unchanged()
            self.second.check_unchanged()
            return
        shift = len(self.first.files)
        for file in files:
            owner, at = (self.first, 0) if file < shift else (self.second, shift)
            owner.check_unchanged((file - at,))

    def close(self) -> None:
        self.first.close()
        self.second.close()


def quantization_of(source: TensorSource) -> str:
    """The name of a model's type, such as "Q4_K_M": of `general.file_type` as llama.cpp spells it,
    else the type of most bytes; "" without tensors."""
    number = source.metadata.get("general.file_type")
    if isinstance(number, int):
        from gguf import LlamaFileType

        names = {one.value: one.name.removeprefix("MOSTLY_") for one in LlamaFileType}
        if number in names:
            return names[number]
    by_type: Counter[str] = Counter()
    for tensor in source.tensors.values():
        by_type[tensor.dtype.name] += tensor.nbytes
    return next((name for name, _ in by_type.most_common(1)), "")


_OF_A_FILE = ("general.", "split.")


def _from_array(name: str, value: np.ndarray) -> tuple[DType, tuple[int, ...], memoryview]:
    import numpy as np

    little = value.dtype.newbyteorder("<")
    # Not `t.numpy == little` alone: numpy takes None for float64.
    dtype = next((t for t in DType if t.numpy is not None and t.numpy == little), None)
    if dtype is None:
        raise TensorError(f"tensor {name!r}: ggml has no type for numpy's {value.dtype}; cast it")
    shape = tuple(reversed(value.shape)) or (1,)
    # Flat: the memoryview of an array without dimensions cannot be cast to bytes.
    return dtype, shape, np.ascontiguousarray(value, little).reshape(-1).data


def _checked(name: str, dtype: DType, shape: tuple[int, ...], nbytes: int) -> TensorInfo:
    if not 1 <= len(shape) <= 4 or min(shape) < 1:
        raise TensorError(f"tensor {name!r}: shape {list(shape)} is not one to four sizes above 0")
    expected = dtype.row_size(shape[0]) * prod(shape[1:])
    if nbytes != expected:
        raise TensorError(
            f"tensor {name!r}: {list(shape)} of {dtype} takes {expected} bytes, not {nbytes}"
        )
    return TensorInfo(name, shape, dtype, nbytes, 0, 0)
