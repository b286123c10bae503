"""Importance matrices: how much each input of a weight matters, as llama.cpp keeps it.

A matrix says, for each input of a tensor of weights, the mean of its squares over a text. Types
below four bits choose their few values by it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, TensorError
from ..gguf_file import DType, TensorSource, open_gguf
from ..gguf_file.buffer import Buffer
from .tensor_types import kind_of
from .write import info, write_gguf

_SUMS, _COUNTS = ".in_sum2", ".counts"
_TYPE = "imatrix"
_NAME_LIMIT = 127  # bytes of a text in a file's metadata, as llama.cpp cuts it


@dataclass(frozen=True)
class Importance:
    """The importance of one tensor's inputs.

    Attributes:
        sums: float32 [matrices, width], sums of squares of the inputs; a matrix an expert.
        counts: int64 [matrices], the number of inputs summed up, or one number for all.
    """

    sums: np.ndarray
    counts: np.ndarray

    def means(self) -> np.ndarray:
        """Mean squares, float32 [matrices, width]; ones for experts that no input reached."""
        counts = self.counts.astype(np.float32)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(counts > 0, self.sums / counts, np.float32(1))


@dataclass(frozen=True)
class ImportanceMatrix:
    """The contents of an imatrix file.

    Attributes:
        entries: name of a tensor → its entry, sorted by name.
        path: of the file.
        datasets: names of the texts it was computed from.
        chunks, chunk_size: the texts' number of chunks, and tokens in one.
    """

    entries: Mapping[str, Importance]
    path: str = ""
    datasets: list[str] = field(default_factory=list)
    chunks: int = 0
    chunk_size: int = 0

    @classmethod
    def read(cls, path: str | Path) -> ImportanceMatrix:
        """Reads a file of llama-imatrix: GGUF, or the older format (.dat).

        Raises:
            MissingFile: there is no such file.
            FormatError: it is no imatrix, is damaged, or holds NaN or infinity.
        """
        with closing(Buffer.open(Path(path))) as buffer:
            if buffer.view[:4] == b"GGUF":
                with open_gguf(path) as source:
                    matrix = cls(_entries_of(source), str(path), *_about(source))
            else:
                matrix = _read_legacy(path, buffer.view)
        for name, entry in matrix.entries.items():
            if not np.isfinite(entry.sums).all():
                raise FormatError(f"{path}: {name} holds NaN or infinity; make the file again")
        if not matrix.entries:
            raise FormatError(f"{path} holds no importance of any tensor; make the file again")
        return matrix

    def write(self, path: str | Path, *, force: bool = False) -> None:
        """Writes a GGUF file as llama-imatrix does.

        Raises:
            WriteError: it cannot be written.
        """
        values: dict[str, np.ndarray] = {}
        for name, entry in self.entries.items():
            values[name + _SUMS] = entry.sums.astype(np.float32)
            values[name + _COUNTS] = entry.counts.astype(np.float32)[:, None]
        metadata = {
            "general.type": _TYPE,
            "imatrix.datasets": self.datasets or [""],  # llama-quantize wants the key
            "imatrix.chunk_count": np.uint32(self.chunks),
            "imatrix.chunk_size": np.uint32(self.chunk_size),
        }
        infos = [info(name, v.shape[::-1], DType.F32) for name, v in values.items()]
        write_gguf(
            path, metadata, infos, lambda t: values[t.name].data, lambda _: None, force=force
        )

    def of(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The importance of a tensor's inputs, float32 [matrices, width]; None if unknown.

        Args:
            shape: the tensor's, in ggml's order.

        Raises:
            TensorError: the matrix is of another shape, so of another model.
        """
        entry = self.entries.get(name)
        if entry is None:
            return None
        width, matrices = shape[0], prod(shape[2:3])
        if entry.sums.size != width * matrices:
            if kind_of(name) == "tokens":  # a tied embedding: its entry is the output's
                return None
            raise TensorError(
                f"{self.path}: {name} has {entry.sums.size} values, but the tensor {list(shape)} "
                f"needs {width * matrices}; give the importance matrix of this very model"
            )
        return np.ascontiguousarray(entry.means().reshape(matrices, width))

    def metadata(self) -> dict[str, Any]:
        """The metadata of a file quantised with this matrix, as llama-quantize writes it."""
        metadata: dict[str, Any] = {"quantize.imatrix.file": _cut(self.path)}
        if self.datasets:
            metadata["quantize.imatrix.dataset"] = _cut(self.datasets[0])
        metadata["quantize.imatrix.entries_count"] = np.uint32(len(self.entries))
        if self.chunks > 0:
            metadata["quantize.imatrix.chunks_count"] = np.uint32(self.chunks)
        return metadata


def _cut(text: str) -> str:
    return text.encode()[:_NAME_LIMIT].decode(errors="ignore")


def _about(source: TensorSource) -> tuple[list[str], int, int]:
    """Datasets, number of chunks and tokens in one."""
    keys = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")
    missing = [key for key in keys if key not in source.metadata]
    if source.metadata.get("general.type") != _TYPE or missing:
        raise FormatError(
            f"{source.name} is no importance matrix: general.type is "
            f"{source.metadata.get('general.type')!r:.40}; make one with `ggmodel imatrix`"
        )
    datasets, chunks, size = (source.metadata[key] for key in keys)
    if not (isinstance(chunks, int) and isinstance(size, int)):
        raise FormatError(f"{source.name}: imatrix.chunk_count and chunk_size must be integers")
    if isinstance(datasets, str) or not isinstance(datasets, Iterable):
        raise FormatError(f"{source.name}: imatrix.datasets must be a list of names")
    return [str(name) for name in datasets if name], chunks, size


def _entries_of(source: TensorSource) -> dict[str, Importance]:
    entries = {}
    for t in source.tensors.values():
        if t.dtype is not DType.F32:
            raise FormatError(f"{source.name}: {t.name} is {t.dtype}, not F32; make the file again")
    ends = (_SUMS, _COUNTS)
    for name in sorted({n.removesuffix(e) for n in source.tensors for e in ends if n.endswith(e)}):
        if not all(name + end in source.tensors for end in ends):
            raise FormatError(f"{source.name}: {name} lacks sums or counts; make the file again")
        sums, counts = (np.frombuffer(source.data(name + end), "<f4").copy() for end in ends)
        if not len(counts) or len(sums) % len(counts):
            raise FormatError(
                f"{source.name}: {name} has {len(sums)} sums and {len(counts)} counts, which do "
                "not go together; make the file again"
            )
        if not (np.isfinite(counts).all() and (np.abs(counts) < 2**53).all()):
            raise FormatError(f"{source.name}: {name} has counts that are no numbers")
        # Halves are rounded away from zero, as lround does.
        rounded = (np.floor(np.abs(counts) + 0.5) * np.sign(counts)).astype(np.int64)
        entries[name] = Importance(sums.reshape(len(counts), -1), rounded)
    return entries


def _read_legacy(path: str | Path, raw: memoryview) -> ImportanceMatrix:
    """The format before GGUF: little-endian int32 and float32, texts behind their lengths."""
    at = 0

    def take(size: int) -> memoryview:
        nonlocal at
        if not 0 <= size <= len(raw) - at:
            raise FormatError(
                f"{path} is no importance matrix: byte {at} asks for {size} bytes of "
                f"{len(raw) - at}; make one with `ggmodel imatrix`"
            )
        at += size
        return raw[at - size : at]

    def number() -> int:
        return struct.unpack("<i", take(4))[0]

    def entries() -> Iterator[tuple[str, Importance]]:
        for _ in range(number()):
            name = bytes(take(number())).decode("utf-8", "replace")
            calls, size = number(), number()
            sums = np.frombuffer(take(4 * size), "<f4").copy()
            if not len(sums):
                raise FormatError(f"{path}: {name:.80} has no values; make the file again")
            # A count of zero divides by nothing.
            yield name, Importance(sums[None], np.array([calls if calls > 0 else 1], np.int64))

    by_name = dict(sorted(entries()))
    chunks = number() if at < len(raw) else 0
    size = number() if at < len(raw) else 0
    datasets = [bytes(take(size)).decode("utf-8", "replace")] if size > 0 else []
    return ImportanceMatrix(by_name, str(path), datasets, chunks)
