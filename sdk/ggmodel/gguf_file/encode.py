"""Python values as metadata values: memory sources give the same types as files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from .buffer import U32, U64, Buffer
from .values import BY_NAME, MAX_DEPTH, Array, array_at


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
