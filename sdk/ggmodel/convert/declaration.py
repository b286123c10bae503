"""Walks a model's declaration in the names of a Hugging Face checkpoint."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, LoadError
from ..ml import Tensor
from ..model import Model, Module
from ..model.fields import TensorField
from ..model.module import FieldType, module_fields
from ..model.names import Place, join
from ..model.operations import Computed, Operation, Sources, value_of

if TYPE_CHECKING:
    import numpy as np

_SHOWN = 8  # entries in an exception's message
LONGEST = 1024  # entries of a list, unless the checkpoint has more tensors than that


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


def plan(
    architecture: type[Model], config: Any, names: Collection[str], split: bool = False
) -> list[Entry]:
    """The GGUF tensors that a checkpoint with these tensor names gives.

    Args:
        split: what the model sees with has the names of a file of its own.

    Raises:
        LoadError: required fields without a source; names them, and the nearest in the checkpoint.
    """
    walker = _Walker(config, set(names), split)
    found = walker.module(architecture(config), Place(("",)), _Source(), "")
    missing = [m for m in found.missing if not _falls_back(m, found.entries)]
    if missing:
        raise LoadError(
            f"the checkpoint does not fit the architecture {architecture.architecture!r}:\n  "
            + "\n  ".join(_describe(m, names) for m in missing[:_SHOWN])
            + (f"\n  … and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        )
    return list(found.entries.values())


@dataclass(frozen=True)
class Pair:
    """A module of a model, and the one of a checkpoint's model that does the same.

    Attributes:
        path: in the model, "layers[3].attn.q".
        name: in names of the checkpoint, "model.layers.3.self_attn.q_proj".
        part: which of its results are the module's; None is all.
        op: what the module's tensors have gone through.
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


def pairs(model: Model, names: Collection[str]) -> list[Pair]:
    """The modules of a model that have a counterpart, and which; in order of declaration.

    Args:
        model: with its fields filled: where a field has a choice, what it holds counts.
        names: of the tensors in the checkpoint.
    """
    walker = _Walker(model.config, set(names))
    found = list(walker.module(model, Place(("",)), _Source(), "").pairs.values())
    # Several that are made of one module's tensors, as experts may be, do not do what that does.
    whole = Counter((p.path.rpartition(".")[0], p.name) for p in found if p.part is None)
    return [p for p in found if p.part or whole[p.path.rpartition(".")[0], p.name] == 1]


@dataclass(frozen=True)
class Survey:
    """How far a declaration fits a checkpoint.

    Attributes:
        entries: what could be written.
        missing: a line for each required field without a source.
        pairs: modules that both have.
    """

    entries: list[Entry]
    missing: list[str]
    pairs: list[Pair]


def survey(architecture: type[Model], config: Any, names: Collection[str]) -> Survey:
    """As `plan`, for a declaration that is not finished."""
    found = _Walker(config, set(names)).module(architecture(config), Place(("",)), _Source(), "")
    missing = [m for m in found.missing if not _falls_back(m, found.entries)]
    described = [_describe(m, names).removeprefix("missing  ") for m in missing]
    return Survey(list(found.entries.values()), described, list(found.pairs.values()))


def _falls_back(missing: _Missing, entries: Mapping[str, Entry]) -> bool:
    """An alternate GGUF name that is written serves a field that has no source."""
    return any(e == n or e.startswith(f"{n}.") for n in missing.alternates for e in entries)


def _describe(missing: _Missing, names: Collection[str]) -> str:
    text = f"missing  {missing.field} ({missing.name}): "
    if not missing.tried:
        return text + "its declaration names no counterpart, hf="
    near = difflib.get_close_matches(missing.tried[0], names, 2)
    text += f"no tensor {' or '.join(missing.tried)}"
    return text + (f"; the checkpoint has {', '.join(near)}" if near else "")


@dataclass(frozen=True)
class _Missing:
    """A required field without a source: its path and GGUF name, the names tried in the
    checkpoint, and the GGUF names that may stand in for it."""

    field: str
    name: str
    tried: tuple[str, ...]
    alternates: tuple[str, ...] = ()


@dataclass
class _Found:
    """What a part of a model gets from the checkpoint.

    Attributes:
        own: how many tensors, computed ones not counted.
        pairs: modules by path.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    pairs: dict[str, Pair] = field(default_factory=dict)
    missing: list[_Missing] = field(default_factory=list)
    own: int = 0

    def add(self, other: _Found) -> None:
        for name, entry in other.entries.items():
            self.entries.setdefault(name, entry)
        self.pairs |= other.pairs
        self.missing += other.missing
        self.own += other.own


@dataclass(frozen=True)
class _Source:
    """Where in a checkpoint a module stands: a path, or the path to `several` tensors or parts of
    one, the path within each of them, and the operation on all tensors of the module."""

    path: str = ""
    several: Sources | None = None
    within: str = ""
    op: Operation | None = None

    def below(self, name: str | Sources) -> _Source:
        if self.several is not None:
            if isinstance(name, Sources):
                raise ConfigError(f"{name}: sources cannot be nested in {self.several}")
            return replace(self, within=join(self.within, name))
        if isinstance(name, Sources):
            return replace(self, several=name)
        return replace(self, path=join(self.path, name))

    def names(self, config: Any) -> tuple[str, ...]:
        if self.several is None:
            return (self.path,)
        inner = (join(n, self.within) for n in self.several.names(config))
        return tuple(join(self.path, n) for n in inner)


class _Walker:
    """Goes through the fields as the loader does, keeping the GGUF name and the place in the
    checkpoint side by side.

    A module without `hf` has no counterpart in checkpoints, unless it is transparent; the name of
    a tensor without `hf` is the same in both. Of alternates the first that exists is taken.
    """

    def __init__(self, config: Any, names: set[str], split: bool = False):
        self.config, self.names, self.split = config, names, split

    def module(self, module: Module, place: Place, source: _Source, path: str) -> _Found:
        found = _Found()
        for name, (tag, kind) in module_fields(type(module)).items():
            label = f"{path}.{name}" if path else name
            given = module.__dict__.get(name)
            there = place.field(tag)
            if self.split and there.candidates[0].startswith(("v.", "mm.")):
                there = place.field(tag.apart())
            if not kind.many:
                found.add(self.field(given, tag, kind, kind.optional, there, source, label))
                continue
            blanks = [None] * self.length(tag.n or 0, label)
            several = _Found()
            for i, item in enumerate(given if isinstance(given, list) else blanks):
                part = f"{label}[{i}]"
                optional = kind.items_optional
                several.add(self.field(item, tag, kind, optional, there.item(i), source, part, i))
            if several.own or not kind.optional:
                found.add(several)
        return found

    def length(self, n: str | int, path: str) -> int:
        length = value_of(self.config, n)
        # It comes from a file: it must not make the walk go on without end.
        if not 0 <= length <= max(len(self.names), LONGEST):
            raise ConfigError(
                f"{path}: {n!r} says {length} entries; the checkpoint has {len(self.names)} tensors"
            )
        return length

    def field(
        self,
        given: Any,
        tag: TensorField,
        kind: FieldType,
        optional: bool,
        place: Place,
        source: _Source,
        path: str,
        index: int | None = None,
    ) -> _Found:
        op = replace(source, op=tag.op) if tag.op is not None else source
        tried: list[_Found] = []
        given = given if isinstance(given, Module) else None
        for choice in kind.choices if given is None else (type(given),):
            plain = issubclass(choice, Tensor)
            for name in _names(tag, plain):
                there = op.below(name)
                if index is not None and not isinstance(name, Sources):
                    there = there.below(str(index))
                if plain:
                    tried.append(self.tensor(place, there, path))
                    continue
                module = given if given is not None else choice(self.config)
                inner = self.module(module, place.only(place.candidates[0]), there, path)
                if pair := self.pair(path, tag, source, there, inner, type(module)):
                    inner.pairs = {path: pair, **inner.pairs}
                tried.append(inner)
        best = max(tried, key=lambda f: (f.own > 0, not f.missing, f.own), default=_Found())
        if best.own or (best.entries and not best.missing):
            return best
        if optional:
            return _Found()
        names = [n for f in tried for m in f.missing for n in m.tried]
        if best.missing or not tried:
            rest = place.candidates[1:]
            lacking = _Missing(path, place.candidates[0], tuple(dict.fromkeys(names)), rest)
            return _Found(missing=[lacking], pairs=best.pairs)
        return best

    def pair(
        self,
        path: str,
        tag: TensorField,
        outside: _Source,
        source: _Source,
        found: _Found,
        module: type[Module],
    ) -> Pair | None:
        """The counterpart of a module that stands at `source`; of a transparent one the module
        that all its tensors are below."""
        names = source.names(self.config)
        if len(names) != 1:
            return None
        (name,) = names
        if (name,) == outside.names(self.config):
            below = [s.split(".")[:-1] for e in found.entries.values() for s in e.sources]
            alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*below, strict=False))
            common = ".".join(parts[0] for parts in alike)
            if len(common) <= len(name):
                return None
            name = common
        return Pair(path, name, source.several, tag.op, module)

    def tensor(self, place: Place, source: _Source, path: str) -> _Found:
        name = place.candidates[0]
        if isinstance(source.several, Computed):
            return _Found({name: Entry(name, (), source.several, source.op)})
        names = source.names(self.config)
        if not names or not all(n in self.names for n in names):
            return _Found(missing=[_Missing(path, name, names)])
        # Bytes are what the file is to hold: operations are for numbers.
        op = None if source.several is not None and source.several.dtype else source.op
        return _Found({name: Entry(name, names, source.several, op)}, own=1)


def _names(tag: TensorField, plain: bool) -> tuple[str | Sources, ...]:
    if tag.hf is not None:
        return tag.hf
    if not tag.names:
        return ("",)
    return tag.names[:1] if plain else ()
