"""Walks a model's declaration in the names of a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import LoadError
from ..gguf import DType, MemorySource
from ..ml.keyvalues import KeyValues
from ..ml import Tensor
from ..model import Model, Module, config_class
from ..model.fields import TensorField
from ..model.module import FieldType, module_fields
from ..model.operations import Computed, Operation, Sources, value_of

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Entry:
    """One GGUF tensor and what it is made of.

    Attributes:
        name: the primary GGUF name.
        sources: names in the checkpoint; empty for a computed tensor.
        join: turns several sources into one; None for one.
        op: applied to the result.
    """

    name: str
    sources: tuple[str, ...]
    join: Sources | None = None
    op: Operation | None = None


def normalise(hf: Mapping[str, Any]) -> dict[str, Any]:
    """A config as checkpoints on disk spell it: `rope_theta` and `rope_scaling` beside each other
    (newer transformers nest both in `rope_parameters`), absent instead of null."""
    config = {k: v for k, v in hf.items() if v is not None}
    rope = config.pop("rope_parameters", None)
    if rope:
        rope = dict(rope)
        if "rope_theta" in rope:
            config.setdefault("rope_theta", rope.pop("rope_theta"))
        if rope.get("rope_type", "default") != "default":
            config.setdefault("rope_scaling", rope)
    return config


def metadata_of(architecture: type[Model], hf: Mapping[str, Any]) -> dict[str, Any]:
    """The architecture's metadata of a normalised config."""
    name = architecture.architecture
    found = config_class(architecture).from_hf(hf)
    return {"general.architecture": name, **{f"{name}.{k}": v for k, v in found.items()}}


def plan(architecture: type[Model], config: Any, names: Collection[str]) -> list[Entry]:
    """The GGUF tensors that a checkpoint with these tensor names gives.

    Raises:
        LoadError: required fields without a source; names them.
    """
    walker = _Walker(config, set(names))
    walker.module(architecture, "", "", None)
    if walker.missing:
        raise LoadError(
            f"the checkpoint does not fit {architecture.architecture!r}; missing: "
            + ", ".join(walker.missing[:8])
        )
    return list(walker.entries.values())


def from_hf(
    architecture: type[Model],
    hf: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    store: Callable[[str, np.ndarray], np.ndarray | tuple[DType, tuple[int, ...], bytes]] | None = None,
) -> MemorySource:
    """A tensor source of a checkpoint held in memory.

    Args:
        hf: the config.json.
        store: how to store a GGUF tensor, given its name and float32 values; None keeps them.
    """
    hf = normalise(hf)
    metadata = metadata_of(architecture, hf)
    config = config_class(architecture).read(KeyValues(metadata, "config.json"))
    made: dict[str, Any] = {}
    for entry in plan(architecture, config, tensors):
        value = _value(entry, config, hf, tensors)
        if value is not None:
            made[entry.name] = value if store is None else store(entry.name, value)
    return MemorySource(metadata, made, name="checkpoint")


def _value(
    entry: Entry, config: Any, hf: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    if isinstance(entry.join, Computed):
        return entry.join.function(hf)
    parts = [tensors[s] for s in entry.sources]
    value = parts[0] if entry.join is None else entry.join.join(parts, config)
    return value if entry.op is None else entry.op.to_gguf(value, config)


class _Walker:
    """Goes through the fields, keeping the GGUF path and the checkpoint's path side by side.

    A field without `hf` has no counterpart in checkpoints unless it is a tensor, whose name is
    then the same. Of alternates in the checkpoint the first that exists is taken.
    """

    def __init__(self, config: Any, names: set[str]):
        self.config, self.names = config, names
        self.entries: dict[str, Entry] = {}
        self.missing: list[str] = []

    def module(self, cls: type[Module], gguf: str, hf: str, tag: TensorField | None) -> None:
        for name, (field, kind) in module_fields(cls).items():
            if kind.many:
                for i in range(value_of(self.config, field.n or 0)):
                    self.field(f"{name}[{i}]", field, kind, f"{_primary(gguf, field)}.{i}", hf, tag, i)
            else:
                self.field(name, field, kind, _primary(gguf, field), hf, tag, None)

    def field(
        self,
        label: str,
        field: TensorField,
        kind: FieldType,
        gguf: str,
        hf: str,
        outer: TensorField | None,
        index: int | None,
    ) -> None:
        # An op or a list of sources on a module applies to the tensors within it.
        carried = field if field.op or _sources(field) else outer
        for choice in kind.choices:
            if issubclass(choice, Tensor):
                found = self.tensor(field, gguf, hf, outer)
            else:
                found = False
                for path in self._paths(field, hf, index):
                    before = len(self.entries)
                    missing = len(self.missing)
                    self.module(choice, gguf, path, carried)
                    if len(self.entries) > before:
                        found = True
                        break
                    del self.missing[missing:]
            if found:
                return
        if not kind.optional and not self._falls_back(field):
            self.missing.append(f"{label} ({gguf})")

    def _falls_back(self, field: TensorField) -> bool:
        """An alternate GGUF name that is already written serves a field that has no source."""
        return any(e.rpartition(".")[0] == n for n in field.names[1:] for e in self.entries)

    def _paths(self, field: TensorField, hf: str, index: int | None) -> list[str]:
        names = field.hf if field.hf is not None else ("",) if not field.names else ()
        tail = "" if index is None else f".{index}"
        paths = []
        for n in names:
            paths.append(hf if isinstance(n, Sources) else _join(hf, n) + tail)
        return paths

    def tensor(
        self, field: TensorField, gguf: str, hf: str, outer: TensorField | None
    ) -> bool:
        carrier = field if field.hf is not None or outer is None else outer
        op = field.op or (outer.op if outer is not None else None)
        for source in carrier.hf if carrier.hf is not None else (field.names[0],):
            if isinstance(source, Computed):
                self.entries.setdefault(gguf, Entry(gguf, (), source, op))
                return True
            if isinstance(source, Sources):
                leaf = "" if carrier is field else f".{field.names[0]}"
                names = tuple(_join(hf, n) + leaf for n in source.names(self.config))
                joiner = source
            else:
                leaf = source if carrier is field else field.names[0]
                names, joiner = (_join(hf, leaf),), None
            if names and all(n in self.names for n in names):
                self.entries.setdefault(gguf, Entry(gguf, names, joiner, op))
                return True
        return False


def _sources(field: TensorField) -> bool:
    return any(isinstance(s, Sources) for s in field.hf or ())


def _primary(gguf: str, field: TensorField) -> str:
    if not field.names:
        return gguf
    return field.names[0] if field.root else _join(gguf, field.names[0])


def _join(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer and name else outer or name
