"""`GGUF`: a model in one GGUF file or in several that belong together (split)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType

from ..closing import closed_on_error
from ..errors import FormatError
from ..reading import MissingFile
from .buffer import quote
from .part import Part, metadata_int, read_part
from .source import JoinedSource, TensorInfo, TensorSource

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
        given: all parts in order, where their names do not tell them.

    Attributes:
        parts: the files, each with its own version, alignment and index.
        version: of the format (2 or 3), in the first file.
        alignment: of tensor data in bytes, in the first file.
        metadata_types: key to "u8" … "f64", "bool", "string" or "array".

    Raises:
        FormatError: a file is missing, damaged, truncated, big-endian or no GGUF; names it, the
            byte offset and a remedy.
    """

    def __init__(self, path: str | os.PathLike[str], given: Sequence[Path] = ()):
        first = Path(path)
        parts: list[Part] = []
        try:
            parts.append(read_part(first, 0))
            paths = given or _part_paths(parts[0])
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


def _part_paths(first: Part) -> list[Path]:
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


def _read_next(path: Path, i: int, first: Path, count: int) -> Part:
    try:
        return read_part(path, i)
    except MissingFile:
        raise MissingFile(
            f"{path} does not exist, but {first} is split into {count} files; "
            "put all of them into one folder"
        ) from None


def _part_path(path: Path, stem: str, no: int, count: int) -> Path:
    return path.with_name(f"{stem}-{no:05}-of-{count:05}.gguf")


def _check_numbers(part: Part, no: int, count: int) -> None:
    for key, expected in (("split.count", count), ("split.no", no)):
        value = metadata_int(part, key)
        if value != expected:
            raise FormatError(
                f"{part.path}: by its name {key} must be {expected}, but the file "
                f"{'does not have it' if value is None else f'has {value}'}; "
                "the part was renamed or belongs to another model"
            )


def _check_part(first: Part, part: Part, no: int) -> None:
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


def _join(parts: list[Part]) -> dict[str, TensorInfo]:
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
