"""Walks a model's declaration in the names of a Hugging Face checkpoint."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..model import Model, Module
from ..model.module import Names, TensorField, join, module_fields, of_tower
from ..model.operations import Computed, Operation, Sources
from ..model.report import LoadReport, compare
from ..model.walk import Outcome, Slot, Walk


@dataclass(frozen=True)
class PlannedTensor:
    """One GGUF tensor and the checkpoint's tensors it is made of.

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


@dataclass(frozen=True)
class Pair:
    """A module of a model, and the module of a checkpoint's model that does the same.

    Attributes:
        path: in the model, "layers[3].attn.q".
        name: in names of the checkpoint, "model.layers.3.self_attn.q_proj".
        part: selects the module's results out of the other's; None takes all.
        op: the operation that the module's tensors went through.
        module: the class of the model's.
    """

    path: str
    name: str
    part: Sources | None = None
    op: Operation | None = None
    module: type[Module] = Module

    def results(self, x: np.ndarray, config: Any) -> np.ndarray:
        """Results [.., width] of the checkpoint's module as the model's module gives them."""
        if self.part is not None:
            x = self.part.results(x, config)
        return x if self.op is None else self.op.results(x, config)


@dataclass(frozen=True)
class CheckpointPlan:
    """How a declaration fits a checkpoint.

    Attributes:
        entries: the GGUF tensors that the checkpoint gives.
        report: missing fields, and tensors that no field reads; its `check` raises.
        pairs: modules that both have, in order of declaration.
    """

    entries: list[PlannedTensor]
    report: LoadReport
    pairs: list[Pair]


def plan(
    architecture: type[Model], config: Any, names: Collection[str], split: bool = False
) -> CheckpointPlan:
    """Fits a declaration to a checkpoint with these tensor names.

    Args:
        split: vision tensors have the names of a file of their own.
    """
    walk = _Planner(config, set(names))
    model = architecture(config)
    fields = walk.module(model, Slot(_Origin(split=split)))
    entries: dict[str, PlannedTensor] = {}
    read: dict[str, str] = {}
    for entry, path in fields.bound:
        entries.setdefault(entry.name, entry)
        for source in entry.sources:
            read.setdefault(source, path)
    # A field without a source is served by an alternate GGUF name that is written.
    missing = [m for m in fields.missing if not walk.served(m.field, entries)]
    bound = [(entry.name, path) for entry, path in fields.bound]
    report = LoadReport(architecture.architecture, bound, missing, what=walk.what)
    compare(report, read, names, model.ignore_hf)
    return CheckpointPlan(list(entries.values()), report, walk.pairs(fields))


def planned(model: Model, names: Collection[str]) -> list[tuple[PlannedTensor, str]]:
    """The tensors of a loaded model that are made of a checkpoint's tensors of these names, each
    with the path of its field."""
    return _Loaded(model.config, set(names)).module(model, Slot(_Origin())).bound


def field_at(model: Model, path: str) -> Any:
    """The value of a field by its path, "layers[3].attn.q.weight"; None if there is none."""
    value: Any = model
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
        value = getattr(value, name, None)
        value = value[int(index)] if index and value is not None else value
    return value


def ignored(model: Model, name: str) -> bool:
    """Whether a model can do without a tensor of a checkpoint, by its name there."""
    return any(fnmatchcase(name, pattern) for pattern in model.ignore_hf)


def copies(model: Model, path: str) -> set[str]:
    """The names under which checkpoints may have copies of a tensor that fills a field."""
    top, _, rest = path.partition(".")
    tag = module_fields(type(model)).get(top)
    names = (f"{name}.{rest}" for name in (tag and tag[0].hf) or ())
    return {name for name in names if ignored(model, name)}


def pairs(model: Model, names: Collection[str]) -> list[Pair]:
    """The modules of a model that have a counterpart, in order of declaration.

    Args:
        model: with its fields filled: where a field has a choice, its present value counts.
        names: of the tensors in the checkpoint.
    """
    walk = _Planner(model.config, set(names))
    candidates = walk.pairs(walk.module(model, Slot(_Origin())))
    # Several that are made of one module's tensors, as experts may be, do not do what that does.
    whole = Counter((p.path.rpartition(".")[0], p.name) for p in candidates if p.part is None)
    left_out = tuple(f"{p.path}." for p in candidates if not p.module.compared)
    return [
        p
        for p in candidates
        if (p.part or whole[p.path.rpartition(".")[0], p.name] == 1)
        and not f"{p.path}.".startswith(left_out)
    ]


@dataclass(frozen=True)
class _Location:
    """Where in a checkpoint a module stands: a path, or the path to `several` tensors or parts of
    one, the path within each of them, and the operation on all tensors of the module."""

    path: str = ""
    several: Sources | None = None
    within: str = ""
    op: Operation | None = None

    def below(self, name: str | Sources) -> _Location:
        if self.several is not None:
            if isinstance(name, Sources):
                raise ConfigError(f"{name}: sources cannot be nested in {self.several}")
            return replace(self, within=join(self.within, name))
        if isinstance(name, Sources):
            return replace(self, several=name)
        return _Location(join(self.path, name), None, "", self.op)

    def names(self, config: Any) -> tuple[str, ...]:
        if self.several is None:
            return (self.path,)
        inner = (join(n, self.within) for n in self.several.names(config))
        return tuple(join(self.path, n) for n in inner)


@dataclass(frozen=True)
class _Origin:
    """The GGUF names of a field, and beside them its location in a checkpoint.

    A module without `hf` has no counterpart in checkpoints, unless it is transparent; the name of
    a tensor without `hf` is the same in both.

    Attributes:
        location: of an alternate its own, otherwise that of the module with the field.
        outside: of an alternate the location of the module with the field.
        tag: None for the model.
        index: of an item of a list.
        split: vision tensors have the names of a file of their own.
    """

    names: Names = field(default_factory=Names)
    location: _Location = field(default_factory=_Location)
    outside: _Location = field(default_factory=_Location)
    tag: TensorField | None = None
    index: int | None = None
    split: bool = False

    def field(self, tag: TensorField) -> _Origin:
        names = self.names.field(tag)
        if self.split and of_tower(names.candidates[0]):
            names = self.names.field(tag.apart())
        return _Origin(names, self.location, self.location, tag, None, self.split)

    def item(self, i: int | None, number: int) -> _Origin:
        return replace(self, names=self.names.item(i, number), index=i)

    def alternates(self, plain: bool) -> Iterator[_Origin]:
        tag = self.tag
        if tag is None:
            yield self
            return
        begin = replace(self.outside, op=tag.op) if tag.op is not None else self.outside
        for name in _hf_names(tag, plain):
            location = begin.below(name)
            if self.index is not None and not isinstance(name, Sources):
                location = location.below(str(self.index))
            first = self.names.alternates(plain)[0]
            yield _Origin(first, location, self.outside, tag, self.index, self.split)


def _hf_names(tag: TensorField, plain: bool) -> tuple[str | Sources, ...]:
    if tag.hf is not None:
        return tag.hf
    if not tag.names:
        return ("",)
    return tag.names[:1] if plain else ()


class _Planner(Walk[_Origin]):
    """The walk by names in a checkpoint; a tensor is an `PlannedTensor`."""

    what, merges = "checkpoint", True

    def __init__(self, config: Any, tensors: Collection[str]):
        super().__init__(config, tensors)
        self._alternates: dict[str, tuple[str, ...]] = {}  # of a missing field, in GGUF

    def find(self, names: _Origin) -> tuple[PlannedTensor | None, tuple[str, ...]]:
        (name,), location = names.names.candidates, names.location
        if isinstance(location.several, Computed):
            return PlannedTensor(name, (), location.several, location.op), ()
        sources = location.names(self.config)
        if not sources or not all(s in self.tensors for s in sources):
            return None, sources
        # Bytes are already what the file is to hold: operations are for numbers.
        in_blocks = location.several is not None and location.several.dtype is not None
        op = None if in_blocks else location.op
        return PlannedTensor(name, sources, location.several, op), sources

    def label(self, slot: Slot[_Origin]) -> str:
        name, *rest = slot.names.names.candidates
        label = f"{slot.path} ({name})"
        self._alternates[label] = tuple(rest)
        return label

    def served(self, label: str, entries: Collection[str]) -> bool:
        """Whether an alternate GGUF name of a missing field is written."""
        names = self._alternates[label]
        return any(e == name or e.startswith(f"{name}.") for name in names for e in entries)

    def pairs(self, fields: Outcome[_Origin]) -> list[Pair]:
        made = (self._pair(*module) for module in fields.modules if module[0])
        return [pair for pair in made if pair is not None]

    def _pair(
        self, path: str, module: Module, at: _Origin, bound: list[tuple[PlannedTensor, str]]
    ) -> Pair | None:
        """The counterpart of a module; of a transparent one the module that holds all of its
        tensors."""
        assert at.tag is not None
        names = at.location.names(self.config)
        if len(names) != 1:
            return None
        (name,) = names
        if (name,) == at.outside.names(self.config):
            below = [s.split(".")[:-1] for entry, _ in bound for s in entry.sources]
            alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*below, strict=False))
            common = ".".join(parts[0] for parts in alike)
            if len(common) <= len(name):
                return None
            name = common
        return Pair(path, name, at.location.several, at.tag.op, type(module))


class _Loaded(_Planner):
    """The walk through a loaded model by the names of some of its tensors: its modules are there,
    though others of their tensors have no names."""

    def _choose(self, slot: Slot[_Origin]) -> tuple[Any, Outcome[_Origin]]:
        there = isinstance(slot.preset, Module)
        return super()._choose(replace(slot, optional=slot.optional and not there))
