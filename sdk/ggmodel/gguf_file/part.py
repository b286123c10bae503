"""One GGUF file: its header, metadata and tensor index, completely checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..closing import closed_on_error
from ..errors import FormatError
from .buffer import Buffer, quote
from .source import TensorInfo
from .types import DType
from .values import read_value

MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
# The fewest bytes of a key with its value, and of a tensor's entry.
_MIN_PAIR, _MIN_TENSOR = 13, 24
_TYPES: dict[int, DType] = {int(t): t for t in DType}
_REMOVED_TYPES = (4, 5, 31, 32, 33, 36, 37, 38)
_OTHER_FORMATS = {
    b"FUGG": "a GGUF file with swapped bytes; convert it with gguf-convert-endian",
    b"lmgg": "a GGML file, from before GGUF; convert the original model again",
    b"fmgg": "a GGMF file, from before GGUF; convert the original model again",
    b"tjgg": "a GGJT file, from before GGUF; convert the original model again",
    b"vers": "perhaps a Git LFS pointer instead of the file; run `git lfs pull`",
}


@dataclass(frozen=True)
class Part:
    """One file of a model.

    Attributes:
        path: as given; links are not followed.
        buffer: its bytes.
        version: of the format, 2 or 3.
        alignment: bytes; every tensor's offset from `data_offset` is a multiple of it.
        data_offset: first byte of the tensor data.
        metadata: key to value, in file order.
        metadata_types: key to the name of the value's type ("u32", "string", "array", …).
        tensors: the index, in file order.
    """

    path: Path
    buffer: Buffer
    version: int
    alignment: int
    data_offset: int
    metadata: Mapping[str, Any]
    metadata_types: Mapping[str, str]
    tensors: tuple[TensorInfo, ...]


def read_part(path: Path, file: int) -> Part:
    """Maps and checks one file, which becomes number `file` of its source."""
    buffer = Buffer.open(path)
    with closed_on_error(buffer):
        return _parse(path, buffer, file)


def _parse(path: Path, buffer: Buffer, file: int) -> Part:
    version = _check_magic(buffer)
    n_tensors = buffer.u64(8, "the number of tensors")
    n_pairs = buffer.u64(16, "the number of metadata keys")
    for at, n, least, what in (
        (8, n_tensors, _MIN_TENSOR, "tensors"),
        (16, n_pairs, _MIN_PAIR, "metadata keys"),
    ):
        if n > (buffer.size - 24) // least:
            raise buffer.error(at, f"{n} {what} do not fit into {buffer.size} bytes")

    metadata: dict[str, Any] = {}
    types: dict[str, str] = {}
    at, alignment_at = 24, 24
    for i in range(n_pairs):
        key_at = at
        key, at = buffer.identifier(at, f"metadata key {i}")
        if key in metadata:
            raise buffer.error(key_at, f"metadata key {quote(key)} occurs twice")
        if key == "general.alignment":
            alignment_at = at
        metadata[key], types[key], at = read_value(buffer, at, f"metadata {quote(key)}")

    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise buffer.error(
            alignment_at, f"general.alignment must be a power of two, not {alignment!r}"
        )
    entries: dict[str, tuple[TensorInfo, int]] = {}
    for i in range(n_tensors):
        entry_at = at
        entry, at = _read_entry(buffer, at, i, file)
        if entry.name in entries:
            raise buffer.error(entry_at, f"tensor {quote(entry.name)} occurs twice")
        entries[entry.name] = entry, at - 8  # an entry ends with the offset of its data

    data_offset = -(-at // alignment) * alignment
    tensors = tuple(_place(buffer, *entry, data_offset, alignment) for entry in entries.values())
    _check_overlap(buffer, tensors)
    return Part(
        path,
        buffer,
        version,
        alignment,
        data_offset,
        MappingProxyType(metadata),
        MappingProxyType(types),
        tensors,
    )


def _check_magic(buffer: Buffer) -> int:
    magic = buffer.near(0, 4)[0][:4]
    if magic != b"GGUF":
        hint = _OTHER_FORMATS.get(magic, "give the path of a .gguf file")
        raise buffer.error(0, f"not a GGUF file (it starts with {magic!r}): {hint}")
    version = buffer.u32(4, "the version")
    if version and version & 0xFFFF == 0:
        raise buffer.error(
            4,
            "the file is big-endian, which is not supported; convert a copy of it with "
            "`gguf-convert-endian FILE little` (from the gguf package)",
        )
    if version == 1:
        raise buffer.error(4, "GGUF version 1 is obsolete; convert the original model again")
    if version not in (2, 3):
        raise buffer.error(4, f"GGUF version {version} is unknown (2 and 3 are supported)")
    return version


def _read_entry(buffer: Buffer, at: int, i: int, file: int) -> tuple[TensorInfo, int]:
    """The tensor, with its offset from the data of all tensors, and the offset after the entry."""
    start = at
    name, at = buffer.identifier(at, f"the name of tensor {i}")
    what = f"tensor {quote(name)}"
    n_dims = buffer.u32(at, f"the number of dimensions of {what}")
    if n_dims > MAX_DIMS:
        raise buffer.error(at, f"{what} has {n_dims} dimensions; at most {MAX_DIMS} are possible")
    at += 4
    shape = tuple(buffer.u64(at + 8 * d, f"the shape of {what}") for d in range(n_dims))
    if 0 in shape:
        raise buffer.error(at, f"{what} of shape {list(shape)} has no elements")
    at += 8 * n_dims
    number = buffer.u32(at, f"the type of {what}")
    dtype = _TYPES.get(number)
    if dtype is None:
        raise buffer.error(at, f"{what} has {_unknown_type(number)}")
    # A scalar has no dimensions in the file and one element, [1], everywhere else.
    shape = shape or (1,)
    if shape[0] % dtype.block_size:
        raise buffer.error(
            start,
            f"{what} has rows of {shape[0]} elements, "
            f"but {dtype} takes a multiple of {dtype.block_size}",
        )
    offset = buffer.u64(at + 4, f"the offset of {what}")
    nbytes = dtype.row_size(shape[0]) * prod(shape[1:])
    return TensorInfo(name, shape, dtype, nbytes, file, offset), at + 12


def _unknown_type(number: int) -> str:
    if number in _REMOVED_TYPES:
        return f"type {number}, which ggml has removed; quantise the original model again"
    return f"the unknown type {number}; the file is damaged, or newer than this version of ggmodel"


def _place(
    buffer: Buffer, e: TensorInfo, offset_at: int, data_offset: int, alignment: int
) -> TensorInfo:
    if e.offset % alignment:
        raise buffer.error(
            offset_at,
            f"tensor {quote(e.name)} has offset {e.offset}, "
            f"which is no multiple of the alignment {alignment}",
        )
    offset = data_offset + e.offset
    if offset + e.nbytes > buffer.size:
        raise buffer.error(
            offset_at,
            f"tensor {quote(e.name)} of shape {list(e.shape)} and type {e.dtype} would end at byte "
            f"{offset + e.nbytes} but the file at {buffer.size}; it is truncated or damaged, "
            "download or convert it again",
        )
    return replace(e, offset=offset)


def _check_overlap(buffer: Buffer, tensors: tuple[TensorInfo, ...]) -> None:
    end, last = 0, ""
    for t in sorted(tensors, key=lambda t: t.offset):
        if t.offset < end:
            raise buffer.error(
                t.offset, f"the data of tensors {quote(last)} and {quote(t.name)} overlap"
            )
        end, last = t.offset + t.nbytes, t.name


def metadata_int(part: Part, key: str) -> int | None:
    """The integer under `key`, None if the key is absent."""
    value = part.metadata.get(key)
    if value is not None and type(value) is not int:
        raise FormatError(f"{part.path}: {key} must be an integer, not {quote(repr(value))}")
    return value
