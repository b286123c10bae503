"""The contents of a file: metadata, hyperparameters, tensors by layer, totals."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import ArchitectureError, ConfigError
from ..gguf_file import GGUF, Array, DType, TensorInfo, TensorSource

_SHOWN = 6  # items of an array that are decoded


@dataclass(frozen=True)
class ArraySummary:
    """A metadata array with its first items decoded."""

    length: int
    first: list[Any]


@dataclass(frozen=True)
class MetadataEntry:
    """A key of the metadata.

    Attributes:
        type: of GGUF ("u32", "string", "array of string"), or of Python if the source is no GGUF.
    """

    key: str
    type: str
    value: int | float | bool | str | ArraySummary


@dataclass(frozen=True)
class Hyperparameter:
    """A field of the architecture's `Config`.

    Attributes:
        key: of the metadata that holds its value; None for a default.
    """

    name: str
    value: Any
    key: str | None


@dataclass(frozen=True)
class TensorRow:
    """A tensor; `shape` in ggml's order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Layer:
    """The tensors of one layer.

    Attributes:
        name: the prefix of their names ("blk.0"); "" outside of layers.
    """

    name: str
    tensors: list[TensorRow]
    nbytes: int


@dataclass(frozen=True)
class Total:
    """Sums over the tensors of one type."""

    dtype: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True)
class Description:
    """The contents of a file, as `ggmodel show` prints them.

    Attributes:
        files: one, or the parts of a split model.
        version: of the format; None if the source is no GGUF.
        architecture: None if the file names none.
        hyperparameters: None if they are unknown; `note` gives the reason.
    """

    name: str
    files: list[str]
    version: int | None
    architecture: str | None
    metadata: list[MetadataEntry]
    hyperparameters: list[Hyperparameter] | None
    note: str | None
    layers: list[Layer]
    totals: list[Total]
    tensors: int
    parameters: int
    nbytes: int


def describe(source: TensorSource, models: str | Path | None = None) -> Description:
    """Describes a source. Reads no tensors and only the first items of arrays.

    Args:
        models: a folder of architectures, searched first.
    """
    infos = list(source.tensors.values())
    architecture = source.metadata.get("general.architecture")
    hyperparameters, note = _hyperparameters(source, models)
    return Description(
        name=source.name,
        files=[str(f) for f in source.files],
        version=source.version if isinstance(source, GGUF) else None,
        architecture=architecture if isinstance(architecture, str) else None,
        metadata=[_entry(source, key) for key in source.metadata],
        hyperparameters=hyperparameters,
        note=note,
        layers=_layers(infos),
        totals=_totals(infos),
        tensors=len(infos),
        parameters=sum(t.n_elements for t in infos),
        nbytes=sum(t.nbytes for t in infos),
    )


def _entry(source: TensorSource, key: str) -> MetadataEntry:
    value = source.metadata[key]
    if isinstance(value, Array):
        return MetadataEntry(key, f"array of {value.dtype}", _summary(value))
    kind = source.metadata_types[key] if isinstance(source, GGUF) else type(value).__name__
    return MetadataEntry(key, kind, value)


def _summary(array: Array) -> ArraySummary:
    first = list(islice((array[i] for i in range(len(array))), _SHOWN))
    return ArraySummary(len(array), [_summary(x) if isinstance(x, Array) else x for x in first])


def _hyperparameters(
    source: TensorSource, models: str | Path | None
) -> tuple[list[Hyperparameter] | None, str | None]:
    # Imported here, for they need numpy, which a file of unknown architecture does not.
    from ..gguf_file.values import KeyValues
    from ..model import config_class
    from ..model.config import key_fields
    from ..model.loader import of_source

    keys = KeyValues(source.metadata, source.name)
    try:
        declared = config_class(of_source(keys, models))
        config = declared.read(keys)
    except (ArchitectureError, ConfigError) as error:
        return None, str(error)
    hyperparameters = []
    for name, field, _, _ in key_fields(declared):
        candidates = [full for key in field.names for full in (keys.full(key), key)]
        key = next((k for k in candidates if k in source.metadata), None)
        value = getattr(config, name)
        if isinstance(value, list) and len(value) > _SHOWN:
            value = ArraySummary(len(value), value[:_SHOWN])
        hyperparameters.append(Hyperparameter(name, value, key))
    return hyperparameters, None


def _layers(infos: list[TensorInfo]) -> list[Layer]:
    """Tensors grouped by the first number in their names: families of layers in the order of the
    file, each sorted by number."""
    groups: dict[tuple[str, int], list[TensorRow]] = {}
    for t in infos:
        row = TensorRow(t.name, t.dtype.name, t.shape, t.nbytes)
        groups.setdefault(_layer_of(t.name), []).append(row)
    families = {family: i for i, family in enumerate(dict.fromkeys(f for f, _ in groups))}
    return [
        Layer(f"{family}.{number}" if family else "", rows, sum(r.nbytes for r in rows))
        for (family, number), rows in sorted(
            groups.items(), key=lambda item: (families[item[0][0]], item[0][1])
        )
    ]


def _layer_of(name: str) -> tuple[str, int]:
    parts = name.split(".")
    for i, part in enumerate(parts):
        # A hostile name may be one long number.
        if i and part.isascii() and part.isdigit() and len(part) < 10:
            return ".".join(parts[:i]), int(part)
    return "", 0


def _totals(infos: list[TensorInfo]) -> list[Total]:
    """A row for each type, the largest first."""
    by_type: dict[DType, list[TensorInfo]] = {}
    for t in infos:
        by_type.setdefault(t.dtype, []).append(t)
    totals = [
        Total(dtype.name, len(ts), sum(t.n_elements for t in ts), sum(t.nbytes for t in ts))
        for dtype, ts in by_type.items()
    ]
    return sorted(totals, key=lambda t: -t.nbytes)
