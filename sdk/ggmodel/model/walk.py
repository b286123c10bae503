"""The walk over a declaration.

`Walk` decides which tensor fills which field; the loader walks with names in GGUF files, the
converter with names in checkpoints beside them. `class_fields` and `instances` visit the same
fields without deciding anything.
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from ..errors import ConfigError
from ..ml import Tensor
from .module import FieldType, Module, TensorField, join, module_fields
from .operations import value_of
from .report import Missing, WrongShape
from .source_code import author_code, file_of, line_of

if typing.TYPE_CHECKING:
    from typing_extensions import Self

LONGEST = 1024  # items of a list or layers, unless there are more tensors than that


class Naming(Protocol):
    """The candidate names of a field: from those of a module come those of its `field`, from those
    of a list those of its `item`, which may have another number in files. `alternates` are the
    single candidates, the preferred one first; `plain` ones are of a tensor, not of a module."""

    def field(self, tag: TensorField) -> Self: ...
    def item(self, i: int | None, number: int) -> Self: ...
    def alternates(self, plain: bool) -> Iterable[Self]: ...


N = TypeVar("N", bound=Naming)
_MODEL = FieldType((Module,), False)


@dataclass(slots=True)
class Slot(Generic[N]):
    """A field to be filled, or an item of a list.

    Attributes:
        path: by fields, "layers[3].attn.q"; "" is the model.
        scope: the path below the module that holds it, for the names of results.
        kind: its declared type.
        optional: it may stay None.
        shape: expected dims in ggml order, if declared.
        preset: the value that the constructor has put there.
    """

    names: N
    path: str = ""
    scope: str = ""
    kind: FieldType = _MODEL
    optional: bool = False
    shape: tuple[Any, ...] | None = None
    preset: Any = None


@dataclass(slots=True)
class Outcome(Generic[N]):
    """The outcome for a part of a model. Nothing is changed before an outcome is chosen.

    Attributes:
        bound: (tensor, path of its field) in order of declaration.
        values: (module, attribute, value to set); a tensor stands for its weight.
        modules: (path, module, its one alternate, its part of `bound`), outer ones first.
        own: number of bound tensors that are named after this part, not absolutely.
        declared: number of fields for tensors.
    """

    bound: list[tuple[Any, str]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    wrong: list[WrongShape] = field(default_factory=list)
    values: list[tuple[Module, str, Any]] = field(default_factory=list)
    modules: list[tuple[str, Module, N, list[tuple[Any, str]]]] = field(default_factory=list)
    own: int = 0
    declared: int = 0

    def add(self, other: Outcome[N], absolute: bool = False) -> None:
        """Adds a field's outcome.

        Args:
            absolute: its name does not depend on this part's, so it proves nothing about it.
        """
        self.bound += other.bound
        self.missing += other.missing
        self.wrong += other.wrong
        self.values += other.values
        self.modules += other.modules
        self.own += 0 if absolute else other.own
        self.declared += other.declared


class Walk(ABC, Generic[N]):
    """Finds the tensors of all fields of a model.

    A module stands under its first name that has any of its tensors. A field with a choice of
    types takes the one that has all of its tensors, in the declared shapes, and most of them.

    Attributes:
        what: is walked through, for messages: "file" or "checkpoint".
        merges: a module without any tensors is one entry of the report, not one a tensor.
    """

    what: ClassVar[str] = "file"
    merges: ClassVar[bool] = False

    def __init__(self, config: Any, tensors: Collection[str]):
        self.config, self.tensors = config, tensors
        self._within: list[tuple[Module, bool]] = []  # outer modules; whether the walk made them

    @abstractmethod
    def find(self, names: N) -> tuple[Any, tuple[str, ...]]:
        """The tensor of one alternate, an object with a `name`, or None; and the names that it
        needs, none if it is computed."""

    def label(self, slot: Slot[N]) -> str:
        """A field without tensors, for the report."""
        return slot.path

    def misfit(self, tensor: Any, slot: Slot[N]) -> list[WrongShape]:
        """The tensor, if its shape is not the declared one."""
        return []

    def module(self, module: Module, slot: Slot[N]) -> Outcome[N]:
        """The outcome for a module under the first of its names that has any of its tensors.

        Raises:
            ConfigError: it holds itself, or a module of its own class that the walk has to make,
                and so on without end.
        """
        if any(outer is module for outer, _ in self._within):
            raise self._endless(type(module), slot)
        self._within.append((module, slot.preset is None))
        try:
            return self._module(module, slot)
        finally:
            self._within.pop()

    def _endless(self, inner: type[Module], slot: Slot[N]) -> ConfigError:
        holder, _ = self._within[-1]
        name = slot.path.rpartition(".")[2].partition("[")[0]
        return ConfigError(
            f"{line_of(type(holder), name)}: {slot.path}: {inner.__name__} holds itself, without "
            "end; leave this field out, or give it another type"
        )

    def _module(self, module: Module, slot: Slot[N]) -> Outcome[N]:
        tried: list[Outcome[N]] = []
        for names in slot.names.alternates(False):
            outcome = self._fields(module, names, slot)
            outcome.modules.insert(0, (slot.path, module, names, outcome.bound))
            if outcome.own:
                return outcome
            tried.append(outcome)
        if not tried:
            return Outcome(missing=[Missing(slot.path, ())], declared=1)
        tried[0].missing = _merged(m for outcome in tried for m in outcome.missing)
        return tried[0]

    def _fields(self, module: Module, names: N, slot: Slot[N]) -> Outcome[N]:
        whole: Outcome[N] = Outcome()
        for name, (tag, kind) in module_fields(type(module)).items():
            preset = module.__dict__.get(name)
            if preset is None and not (kind.choices or kind.optional) and tag == TensorField():
                continue  # an attribute of the author's own
            path = f"{slot.path}.{name}" if slot.path else name
            shape = tag.shape
            if shape is None and slot.shape is not None and name in module.dims:
                shape = _dims_of(module, name, slot.shape, slot.path)
            inner = Slot(names.field(tag), path, name, kind, kind.optional, shape, preset)
            if kind.many:
                value, outcome = self._list(inner, tag)
            elif tag.numbers is not None:
                value, outcome = self._numbered(inner, tag.numbers)
            else:
                value, outcome = self._choose(inner)
            outcome.values.append((module, name, value))
            whole.add(outcome, tag.root)
        return whole

    def _list(self, slot: Slot[N], tag: TensorField) -> tuple[list[Any] | None, Outcome[N]]:
        """A list as long as declared, or as the one that the constructor has put there."""
        items: list[Any] = []
        whole: Outcome[N] = Outcome()
        label = tag.names[0] if tag.names else slot.path
        numbers = None if tag.numbers is None else list(getattr(self.config, tag.numbers))
        initial = slot.preset if isinstance(slot.preset, list) else self._blanks(tag, slot.path)
        for i, item in enumerate(initial):
            value, outcome = self._choose(
                replace(
                    slot,
                    names=slot.names.item(i, i if numbers is None else numbers[i]),
                    path=f"{slot.path}[{i}]",
                    scope=f"{label}.{i}",
                    optional=slot.kind.items_optional,
                    preset=item,
                )
            )
            items.append(value)
            whole.add(outcome)
        if slot.optional and not whole.own and (whole.declared or not items):
            return None, Outcome(declared=whole.declared)
        return items, whole

    def _numbered(self, slot: Slot[N], numbers: str) -> tuple[Any, Outcome[N]]:
        """A field that has a number in files, the only one of a config's attribute, or None."""
        listed = list(getattr(self.config, numbers))
        if not listed:
            return None, Outcome()
        return self._choose(replace(slot, names=slot.names.item(None, listed[0])))

    def _blanks(self, tag: TensorField, path: str) -> list[None]:
        if tag.numbers is not None:
            return [None] * len(getattr(self.config, tag.numbers))
        if tag.n is None:
            raise ConfigError(f"{path}: a list needs its length, gguf(..., n=...)")
        length, there = value_of(self.config, tag.n), len(self.tensors)
        # A length comes from the file: it must not make the walk go on without end.
        if not 0 <= length <= max(there, LONGEST):
            raise ConfigError(
                f"{path}: {tag.n!r} says {length} entries; the {self.what} has {there} tensors"
            )
        return [None] * length

    def _choose(self, slot: Slot[N]) -> tuple[Any, Outcome[N]]:
        """The value of a field, the best of its choices."""
        kind, preset = slot.kind, slot.preset
        if kind.interface and not isinstance(preset, Module) and not kind.choices:
            if preset is None and not slot.optional:
                raise ConfigError(
                    f"{slot.path} is typed by an interface: its module's constructor must put an "
                    "instance there, or its type be a union of modules to choose from"
                )
            return preset, Outcome()  # no module, so it holds no tensors
        preset = preset if isinstance(preset, Module) else None
        choices = kind.choices if preset is None else (type(preset),)
        tried = [self._try(choice, preset, slot) for choice in choices]
        value, best = max(tried, key=_fitness)  # ties keep the declared order
        if best.own or (best.bound and not best.missing):
            return value, best
        if slot.optional and (preset is None or best.declared):
            return None, Outcome(declared=best.declared)
        if best.missing and (self.merges or len(tried) > 1):
            names = (name for _, outcome in tried for m in outcome.missing for name in m.tried)
            best.missing = [Missing(self.label(slot), tuple(dict.fromkeys(names)))]
        return value, best

    def _try(self, kind: type[Any], preset: Module | None, slot: Slot[N]) -> tuple[Any, Outcome[N]]:
        if issubclass(kind, Tensor):
            return self._tensor(slot)
        module = preset
        if module is None:
            if any(made and type(outer) is kind for outer, made in self._within):
                raise self._endless(kind, slot)
            with author_code(f"{slot.path} cannot be made", file_of(kind)):
                module = kind(self.config)
        outcome = self.module(module, slot)
        outcome.values.append((module, "scope", slot.scope))
        return module, outcome

    def _tensor(self, slot: Slot[N]) -> tuple[Any, Outcome[N]]:
        tried: list[str] = []
        for alternate in slot.names.alternates(True):
            tensor, names = self.find(alternate)
            if tensor is not None:
                return tensor, Outcome(
                    bound=[(tensor, slot.path)],
                    wrong=self.misfit(tensor, slot),
                    own=int(bool(names)),  # a computed tensor proves nothing
                    declared=1,
                )
            tried += names
        return None, Outcome(missing=[Missing(slot.path, tuple(tried))], declared=1)


def _fitness(tried: tuple[Any, Outcome[Any]]) -> tuple[bool, bool, bool, int]:
    outcome = tried[1]
    return outcome.own > 0, not outcome.missing, not outcome.wrong, outcome.own


def _dims_of(module: Module, name: str, shape: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    dims = module.dims[name]
    if max(dims) >= len(shape):
        raise ConfigError(
            f"{path}: shape={shape} has {len(shape)} sizes; "
            f"{type(module).__name__}.{name} takes its dims from {max(dims) + 1}"
        )
    return tuple(shape[i] for i in dims)


def _merged(missing: Iterable[Missing]) -> list[Missing]:
    """One entry a field, with the names of all alternates."""
    names: dict[str, dict[str, None]] = {}
    for m in missing:
        names.setdefault(m.field, {}).update(dict.fromkeys(m.tried))
    return [Missing(path, tuple(tried)) for path, tried in names.items()]


def class_fields(root: type[Module]) -> Iterator[tuple[type[Module], str, TensorField, FieldType]]:
    """Class, name, tag and type of the fields of a model and of all modules it may consist of,
    outer classes first."""
    classes = [root]
    for cls in classes:  # grows meanwhile
        for name, (tag, kind) in module_fields(cls).items():
            yield cls, name, tag, kind
            inner = (c for c in kind.choices if issubclass(c, Module))
            classes += [c for c in dict.fromkeys(inner) if c not in classes]


@dataclass(frozen=True, eq=False)
class Instance:
    """A module of a model.

    Attributes:
        path: by fields, "layers[3].attn.q"; "" is the model.
        scope: by names of ops, "blk.3.attn.q".
    """

    path: str
    scope: str
    module: Module


def instances(module: Module, path: str = "", scope: str = "") -> Iterator[Instance]:
    """A module and all modules in its fields, in order of declaration.

    Raises:
        ConfigError: one of them holds itself.
    """
    return _instances(module, path, scope, [])


def _instances(module: Module, path: str, scope: str, within: list[Module]) -> Iterator[Instance]:
    yield Instance(path, scope, module)
    within = [*within, module]
    for label, value in _held(module):
        if isinstance(value, Module):
            inner = f"{path}.{label}" if path else label
            if any(outer is value for outer in within):
                raise ConfigError(f"{inner}: {type(value).__name__} holds itself, without end")
            yield from _instances(value, inner, join(scope, value.scope), within)


def tensors(module: Module) -> Iterator[Tensor]:
    """The tensors in the fields of a module and of all modules within it."""
    for instance in instances(module):
        for _, value in _held(instance.module):
            if isinstance(value, Tensor):
                yield value


def _held(module: Module) -> Iterator[tuple[str, Any]]:
    """Label and value of each field, and of each item of a list."""
    for name in module_fields(type(module)):
        value = getattr(module, name, None)
        if isinstance(value, list):
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(value))
        else:
            yield name, value
