"""`GGUF`: a model in one GGUF file or in several parts (split), completely checked.

The header, metadata and tensor index of each file are checked when it is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import FormatError
from ..reading import MissingFile
from ..resources import closed_on_error
from .buffer import Buffer, quote
from .source import JoinedSource, TensorInfo, TensorSource
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
class GGUFPart:
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


def read_part(path: Path, file: int) -> GGUFPart:
    """Maps and checks one file, which becomes number `file` of its source."""
    buffer = Buffer.open(path)
    with closed_on_error(buffer):
        return _parse(path, buffer, file)


def _parse(path: Path, buffer: Buffer, file: int) -> GGUFPart:
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
    return GGUFPart(
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


def metadata_int(part: GGUFPart, key: str) -> int | None:
    """The integer under `key`, None if the key is absent."""
    value = part.metadata.get(key)
    if value is not None and type(value) is not int:
        raise FormatError(f"{part.path}: {key} must be an integer, not {quote(repr(value))}")
    return value


_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GGUF(TensorSource):
    """A GGUF model. The index is read at once, arrays of the metadata on access; tensors are mapped
    read-only.

    Opening the first part of a split model (`NAME-00001-of-0000N.gguf`) opens all parts; the
    metadata is that of the first. Files that are overwritten or truncated while they are open do
    not end the process: metadata raise `FormatError`, a lost page of a tensor reads as zeros, and
    `check_unchanged` raises from then on.

    Args:
        path: of the file, or of the first part.
        files: all parts in order, where their names do not tell them.

    Attributes:
        parts: the files, each with its own version, alignment and index.
        version: of the format (2 or 3), in the first file.
        alignment: of tensor data in bytes, in the first file.
        metadata_types: key to "u8" … "f64", "bool", "string" or "array".

    Raises:
        FormatError: a file is missing, damaged, truncated, big-endian or no GGUF; names it, the
            byte offset and a remedy.
    """

    def __init__(self, path: str | os.PathLike[str], files: Sequence[Path] = ()):
        first = Path(path)
        parts: list[GGUFPart] = []
        try:
            parts.append(read_part(first, 0))
            paths = files or _part_paths(parts[0])
            for i, p in enumerate(paths[1:], 1):
                parts.append(_read_next(p, i, first, len(paths)))
                _check_part(parts[0], parts[i], i)
            index = _join(parts)
        except BaseException:
            for part in parts:
                part.buffer.close()
            raise
        self.parts = tuple(parts)
        self.name = str(first)
        self.files = tuple(p.path for p in parts)
        self.version = parts[0].version
        self.alignment = parts[0].alignment
        self.metadata = MappingProxyType(parts[0].metadata)
        self.metadata_types = MappingProxyType(parts[0].metadata_types)
        self.tensors = MappingProxyType(index)

    def data(self, name: str) -> memoryview:
        t = self.info(name)
        return self.parts[t.file].buffer.view[t.offset : t.offset + t.nbytes]

    def mapped(self, file: int) -> memoryview:
        return self.parts[file].buffer.view

    def release(self, name: str) -> None:
        t = self.info(name)
        self.parts[t.file].buffer.release(t.offset, t.nbytes)
        self.parts[t.file].buffer.check()

    def check_unchanged(self, files: Iterable[int] | None = None) -> None:
        for file in range(len(self.parts)) if files is None else files:
            self.parts[file].buffer.check()

    def close(self) -> None:
        for part in self.parts:
            part.buffer.close()


def open_gguf(
    path: str | os.PathLike[str],
    mmproj: str | os.PathLike[str] | None = None,
    parts: Sequence[Path] = (),
) -> TensorSource:
    """Opens a model, joined with the projector file `mmproj` if given.

    Args:
        parts: all files of a split model in order, where their names do not tell them.

    Raises:
        FormatError: as for `GGUF` and `JoinedSource`.
    """
    model = GGUF(path, parts)
    if mmproj is None:
        return model
    with closed_on_error(model):
        projector = GGUF(mmproj)
        with closed_on_error(projector):
            return JoinedSource(model, projector)


def _part_paths(first: GGUFPart) -> list[Path]:
    """The paths of all parts of the model whose first part is `first`."""
    path = first.path
    count = metadata_int(first, "split.count")
    no = metadata_int(first, "split.no")
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        if count is None or count <= 1:
            return [path]
        raise FormatError(
            f"{path} is part {(no or 0) + 1} of {count} of a split model but is not named like "
            f"one; rename all parts to NAME-00001-of-{count:05}.gguf and so on"
        )
    named_no, named_count = int(match["no"]), int(match["count"])
    if named_no != 1 and named_count > 1:
        raise FormatError(
            f"{path} is part {named_no} of {named_count} of a split model; "
            f"open the first one instead, {_part_path(path, match['stem'], 1, named_count)}"
        )
    if named_count <= 1 and (count or 0) <= 1:
        return [path]
    _check_numbers(first, 0, named_count)
    return [_part_path(path, match["stem"], i + 1, named_count) for i in range(named_count)]


def _read_next(path: Path, i: int, first: Path, count: int) -> GGUFPart:
    try:
        return read_part(path, i)
    except MissingFile:
        raise MissingFile(
            f"{path} does not exist, but {first} is split into {count} files; "
            "put all of them into one folder"
        ) from None


def _part_path(path: Path, stem: str, no: int, count: int) -> Path:
    return path.with_name(f"{stem}-{no:05}-of-{count:05}.gguf")


def _check_numbers(part: GGUFPart, no: int, count: int) -> None:
    for key, expected in (("split.count", count), ("split.no", no)):
        value = metadata_int(part, key)
        if value != expected:
            raise FormatError(
                f"{part.path}: by its name {key} must be {expected}, but the file "
                f"{'does not have it' if value is None else f'has {value}'}; "
                "the part was renamed or belongs to another model"
            )


def _check_part(first: GGUFPart, part: GGUFPart, no: int) -> None:
    _check_numbers(part, no, metadata_int(first, "split.count") or 0)
    key = "split.tensors.count"
    ours, theirs = metadata_int(first, key), metadata_int(part, key)
    if ours is None:
        raise FormatError(f"{first.path}: {key} is missing; split the model again")
    if theirs is not None and theirs != ours:
        raise FormatError(
            f"{part.path}: {key} is {theirs}, but {ours} in {first.path}; "
            "the parts belong to different models"
        )


def _join(parts: list[GGUFPart]) -> dict[str, TensorInfo]:
    index: dict[str, TensorInfo] = {}
    for part in parts:
        for t in part.tensors:
            if t.name in index:
                other = parts[index[t.name].file].path
                raise FormatError(f"{part.path}: tensor {quote(t.name)} is also in {other}")
            index[t.name] = t
    if len(parts) > 1:
        expected = metadata_int(parts[0], "split.tensors.count")
        if expected != len(index):
            raise FormatError(
                f"{parts[0].path}: split.tensors.count is {expected}, but its {len(parts)} parts "
                f"have {len(index)} tensors; download or split the model again"
            )
    return index
