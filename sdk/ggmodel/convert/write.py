"""Writing a GGUF file: tensor by tensor, whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import Error, Unsupported, WriteError
from ..gguf_file import Array, DType, TensorInfo
from ..storage import atomic_write, naming

_MARGIN = 64 << 10  # bytes for a header, beside the vocabulary's
Progress = Callable[[float], None]
Data = Callable[[TensorInfo], memoryview]


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[TensorInfo],
    data: Data,
    release: Callable[[str], None],
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes a file through the `gguf` package. It has another name in the same folder until it is
    complete and on the disk; after an error, or Ctrl-C, nothing is left of it.

    Args:
        metadata: key to bool, int (u32, or a wider type if needed), float (f32), str, bytes, a
            scalar or array of numpy (in its type), `Array`, or a list of one kind of these (i32,
            f32). Empty lists are left out.
        tensors: name, shape, type and size of each.
        data: called for the bytes of each in turn.
        release: called with the name of each that has been written.
        force: an existing file is replaced.
        progress: called with the share of bytes written.

    Raises:
        WriteError: the file exists, its folder does not or cannot be written to, or the disk has
            no room.
        Unsupported: GGUF has no type for a value.
        Error: whatever `data` and `release` raise.
    """
    with atomic_write(path, force=force, device=False) as file:
        write_into(file, path, metadata, tensors, data, release, progress=progress)


def write_into(
    file: BinaryIO,
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[TensorInfo],
    data: Data,
    release: Callable[[str], None],
    *,
    progress: Progress | None = None,
) -> None:
    """Writes into an open file, as `write_gguf` does, and waits until all is on the disk.

    Args:
        path: the file's name to be, for messages.
    """
    from gguf.gguf_writer import WriterState

    total = sum(t.nbytes for t in tensors)
    _check_space(path, total + _MARGIN + _size_of(metadata))
    with naming(path, Path(path)), closing(_writer(metadata, tensors)) as writer:
        writer.fout, writer.state = [file], WriterState.EMPTY
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done = 0
        for t in tensors:
            try:
                _write_data(writer, file, t, data)
            finally:
                release(t.name)  # raises if the source has changed, whatever else went wrong
            done += t.nbytes
            if progress is not None:
                progress(done / total)
        file.flush()
        os.fsync(file.fileno())


def _check_space(path: str | Path, needed: int) -> None:
    free = shutil.disk_usage(Path(os.path.realpath(path)).parent).free
    if needed > free:
        raise WriteError(
            f"{path} takes {needed:,} bytes, but only {free:,} are free there; make room, or "
            "choose another disk or a smaller --type"
        )


def _size_of(metadata: Mapping[str, Any]) -> int:
    """Bytes, roughly; vocabularies are most of it."""
    size = 0
    for key, value in metadata.items():
        size += len(key) + 32
        if isinstance(value, (str, bytes)):
            size += len(value)
        elif hasattr(value, "__len__"):
            size += 24 * len(value)
    return size


def _writer(metadata: Mapping[str, Any], tensors: Sequence[TensorInfo]) -> Any:
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(None, "")
    writer.kv_data[0].clear()  # all keys in the order of the metadata
    writer.data_alignment = int(metadata.get("general.alignment", writer.data_alignment))
    for key, value in metadata.items():
        _add(writer, key, value)
    for t in tensors:
        # Q2_0 is younger than the package.
        if int(t.dtype) not in {int(kind) for kind in GGMLQuantizationType}:
            raise Unsupported(f"{t.name} is {t.dtype}, which the gguf package cannot write")
        kind = GGMLQuantizationType(int(t.dtype))
        shape = tuple(reversed(t.shape))
        writer.add_tensor_info(t.name, shape, np.dtype(np.float32), t.nbytes, kind)
    return writer


def _write_data(writer: Any, file: BinaryIO, t: TensorInfo, data: Data) -> None:
    raw = np.frombuffer(data(t), np.uint8)
    if raw.nbytes != t.nbytes:
        raise Error(f"{t.name} came as {raw.nbytes} bytes, not {t.nbytes}")
    # Not `writer.write_tensor_data`: numpy's `tofile` in it turns Ctrl-C into a TypeError.
    writer.write_padding(file, file.tell())
    file.write(raw.data)
    writer.write_padding(file, raw.nbytes)


def _add(writer: Any, key: str, value: Any) -> None:
    from gguf import GGUFValueType

    of = GGUFValueType
    if isinstance(value, (str, bytes)):
        writer.add_key_value(key, _bytes(value), of.STRING)
    elif isinstance(value, Array) or getattr(value, "ndim", 0) or isinstance(value, (list, tuple)):
        items, kind = _array(key, value)
        if items:
            writer.add_key_value(key, items, of.ARRAY, sub_type=of[kind])
    else:
        plain, kind = _scalar(key, value)
        writer.add_key_value(key, plain, of[kind])


def _bytes(text: str | bytes) -> bytes:
    """Readers keep bytes that are no UTF-8 as lone surrogates; these become the bytes again."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


# Type as numpy, files and `Array` call it → name in the `gguf` package.
_NAMES = {
    **{f"u{8 * n}": f"UINT{8 * n}" for n in (1, 2, 4, 8)},
    **{f"i{8 * n}": f"INT{8 * n}" for n in (1, 2, 4, 8)},
    "f32": "FLOAT32",
    "f64": "FLOAT64",
    "bool": "BOOL",
    "b8": "BOOL",
    "string": "STRING",
}


def _scalar(key: str, value: Any) -> tuple[Any, str]:
    if hasattr(value, "dtype"):
        return value.item(), _name(key, f"{value.dtype.kind}{8 * value.dtype.itemsize}")
    if isinstance(value, bool):
        return value, "BOOL"
    if isinstance(value, int):
        return value, _narrowest(key, ("UINT32", "INT32", "UINT64", "INT64"), value, value)
    if isinstance(value, float):
        return value, "FLOAT32"
    raise Unsupported(f"metadata {key!r}: GGUF has no type for {type(value).__name__}")


def _array(key: str, value: Any) -> tuple[list[Any], str]:
    if isinstance(value, Array):
        items = [_bytes(v) for v in value] if value.dtype == "string" else list(value)
        return items, _name(key, value.dtype)
    if hasattr(value, "dtype"):
        return value.tolist(), _name(key, f"{value.dtype.kind}{8 * value.dtype.itemsize}")
    kinds = {bytes if isinstance(v, str) else type(v) for v in value}
    if kinds <= {bytes}:
        return [_bytes(v) for v in value], "STRING"
    if kinds == {bool}:
        return list(value), "BOOL"
    if kinds == {int}:
        return list(value), _narrowest(key, ("INT32", "INT64", "UINT64"), min(value), max(value))
    if kinds <= {int, float}:
        return [float(v) for v in value], "FLOAT32"
    raise Unsupported(f"metadata {key!r}: the items of a list must be of one kind")


def _narrowest(key: str, kinds: Sequence[str], least: int, most: int) -> str:
    for kind in kinds:
        bits = int(kind[-2:])
        low, high = (-(1 << bits - 1), 1 << bits - 1) if kind[0] == "I" else (0, 1 << bits)
        if low <= least and most < high:
            return kind
    raise Unsupported(f"metadata {key!r}: an integer does not fit into 64 bits")


def _name(key: str, dtype: str) -> str:
    if dtype not in _NAMES:
        raise Unsupported(f"metadata {key!r}: values of {dtype} cannot be written")
    return _NAMES[dtype]


def info(name: str, shape: Sequence[int], dtype: DType) -> TensorInfo:
    """The description of a tensor that is to be written."""
    nbytes = dtype.row_size(shape[0]) * prod(shape[1:])
    return TensorInfo(name, tuple(shape), dtype, nbytes, 0, 0)
