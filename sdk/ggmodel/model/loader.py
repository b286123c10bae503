"""The reflective loader: fills the fields of a model with the tensors of a file.

It works on names and shapes alone; no weight is read. Everything that does not fit is collected
into one report instead of failing at the first.
"""

from __future__ import annotations

import difflib
import fnmatch
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import ConfigError, LoadError
from ..gguf_file import TensorInfo
from ..ml import Tensor
from .fields import TensorField
from .module import FieldType, Module, module_fields
from .names import Place
from .operations import value_of
from .source import author_code, file_of

_SHOWN = 8  # entries in an exception's message
_LONGEST = 1024  # entries of a list, unless the file has more tensors than that
_COMPARED = 200  # missing names that others are compared with, and names compared with each


class Weights(Protocol):
    """What the loader asks of a backend."""

    def get(self, name: str) -> Tensor | None: ...


@dataclass(frozen=True)
class Missing:
    """A required field without a tensor: its path, all names tried, the nearest in the file."""

    field: str
    tried: tuple[str, ...]
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.field}: no tensor {' or '.join(self.tried)}"
        return text + (f"; the file has {', '.join(self.nearest)}" if self.nearest else "")


@dataclass(frozen=True)
class WrongShape:
    """A tensor whose shape is not the declared one (ggml order; None stands for any)."""

    tensor: str
    field: str
    expected: tuple[int | None, ...]
    found: tuple[int, ...]

    def __str__(self) -> str:
        want = ", ".join("any" if n is None else str(n) for n in self.expected)
        return f"{self.tensor} ({self.field}) is {list(self.found)}, not [{want}]"


@dataclass
class LoadReport:
    """Which tensor fills which field, and all that does not fit.

    Attributes:
        bound: (tensor name, path of the field) in order of declaration.
        unused: tensors that no field holds, without those the model ignores.
        ignored: tensors that no field holds and the model declares it can do without.
    """

    architecture: str
    bound: list[tuple[str, str]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    wrong: list[WrongShape] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def problems(self, strict: bool = True) -> list[str]:
        """One line a problem; unused tensors count when strict."""
        lines = [f"missing  {m}" for m in self.missing]
        lines += [f"shape    {w}" for w in self.wrong]
        if strict:
            lines += [f"unused   {name}" for name in self.unused]
        return lines

    def check(self, strict: bool = True) -> None:
        """Raises `LoadError` with the problems, if there are any; warns of unused tensors that
        are none because `strict` is False."""
        problems = self.problems(strict)
        if not problems:
            if self.unused:
                names = ", ".join(self.unused[:_SHOWN])
                more = f" and {rest} more" if (rest := len(self.unused) - _SHOWN) > 0 else ""
                warnings.warn(
                    f"the architecture {self.architecture!r} does not use {names}{more}",
                    stacklevel=2,
                )
            return
        shown = "\n  ".join(problems[:_SHOWN])
        more = len(problems) - _SHOWN
        rest = f"\n  … and {more} more; `ggmodel check FILE` lists them all" if more > 0 else ""
        advice = ""
        if not (self.missing or self.wrong):
            advice = "\nstrict=False loads a model in spite of unused tensors"
        raise LoadError(
            f"the file does not fit the architecture {self.architecture!r}:\n"
            f"  {shown}{rest}{advice}",
            self,
        )


@dataclass
class _Outcome:
    """What filling a part of a model would come to; nothing is changed before it is chosen.

    Attributes:
        values: what each field is to hold; a `TensorInfo` stands for the weight of that name.
        own: how many of the bound tensors are named after this place, not absolutely.
        declared: how many fields for tensors there are.
    """

    bound: list[tuple[str, str]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    wrong: list[WrongShape] = field(default_factory=list)
    values: list[tuple[Module, str, Any]] = field(default_factory=list)
    own: int = 0
    declared: int = 0

    def add(self, other: _Outcome, root: bool = False) -> None:
        self.bound += other.bound
        self.missing += other.missing
        self.wrong += other.wrong
        self.values += other.values
        self.own += 0 if root else other.own
        self.declared += other.declared


def fill(
    model: Module,
    weights: Weights,
    tensors: Mapping[str, TensorInfo],
    architecture: str,
    ignore: tuple[str, ...] = (),
) -> LoadReport:
    """Fills all fields of a model.

    Args:
        ignore: patterns (`fnmatch`) of tensors that may stay unused.

    Raises:
        ConfigError: the declaration itself makes no sense; names the field.
        ArchitectureError: a module's constructor fails; names the line.
    """
    outcome = _Loader(tensors, model.config).module(model, Place(("",)), "")
    for owner, name, value in outcome.values:
        setattr(owner, name, _held(value, weights))
    used = {name for name, _ in outcome.bound}
    rest = [name for name in tensors if name not in used]
    ignored = [name for name in rest if any(fnmatch.fnmatchcase(name, p) for p in ignore)]
    without = set(ignored)
    unused = [name for name in rest if name not in without]
    nearest = _Nearest(unused, list(tensors))
    missing = [
        Missing(m.field, m.tried, nearest(m.tried) if i < _COMPARED else ())
        for i, m in enumerate(outcome.missing)
    ]
    return LoadReport(architecture, outcome.bound, missing, outcome.wrong, unused, ignored)


def _held(value: Any, weights: Weights) -> Any:
    if isinstance(value, list):
        return [_held(v, weights) for v in value]
    return weights.get(value.name) if isinstance(value, TensorInfo) else value


class _Loader:
    def __init__(self, tensors: Mapping[str, TensorInfo], config: Any):
        self.tensors, self.config = tensors, config

    def module(self, module: Module, place: Place, path: str, shape: Any = None) -> _Outcome:
        """A module under the first candidate name that has any of its tensors."""
        outcomes: list[_Outcome] = []
        for candidate in place.candidates:
            outcome = _Outcome()
            here = place.only(candidate)
            for name, (tag, kind) in module_fields(type(module)).items():
                where = f"{path}.{name}" if path else name
                dims = tag.shape
                if dims is None and shape is not None and name in module.dims:
                    dims = _dims_of(module, name, shape, path)
                there = here.field(tag)
                outcome.add(self.field(module, name, tag, kind, there, where, dims), tag.root)
            if outcome.own:
                return outcome
            outcomes.append(outcome)
        outcomes[0].missing = _merge([o.missing for o in outcomes])
        return outcomes[0]

    def field(
        self,
        owner: Module,
        name: str,
        tag: TensorField,
        kind: FieldType,
        place: Place,
        path: str,
        shape: Any,
    ) -> _Outcome:
        given = owner.__dict__.get(name)
        if given is None and not (kind.choices or kind.optional) and tag == TensorField():
            return _Outcome()  # an attribute of the author's own
        if kind.many:
            value, outcome = self.many(given, tag, kind, place, path)
        else:
            value, outcome = self.choose(given, kind, kind.optional, place, path, shape, name)
        outcome.values.append((owner, name, value))
        return outcome

    def many(
        self, given: Any, tag: TensorField, kind: FieldType, place: Place, path: str
    ) -> tuple[list[Any] | None, _Outcome]:
        """A list: as long as declared, or as what the constructor has put there."""
        items, outcome = [], _Outcome()
        for i, item in enumerate(given if isinstance(given, list) else self.blanks(tag, path)):
            label = f"{tag.names[0] if tag.names else path}.{i}"
            value, part = self.choose(
                item, kind, kind.items_optional, place.item(i), f"{path}[{i}]", tag.shape, label
            )
            items.append(value)
            outcome.add(part)
        if kind.optional and not outcome.own and (outcome.declared or not items):
            return None, _Outcome(declared=outcome.declared)
        return items, outcome

    def blanks(self, tag: TensorField, path: str) -> list[None]:
        if tag.n is None:
            raise ConfigError(f"{path}: a list needs its length, gguf(..., n=...)")
        length = value_of(self.config, tag.n)
        # A length comes from the file: it must not make the loader work without end.
        if not 0 <= length <= max(len(self.tensors), _LONGEST):
            raise ConfigError(
                f"{path}: {tag.n!r} says {length} entries; the file has {len(self.tensors)} tensors"
            )
        return [None] * length

    def choose(
        self,
        given: Any,
        kind: FieldType,
        optional: bool,
        place: Place,
        path: str,
        shape: Any,
        label: str,
    ) -> tuple[Any, _Outcome]:
        """The value of a field: of several choices the one whose tensors the file has."""
        if kind.interface and not isinstance(given, Module) and not kind.choices:
            if given is None and not optional:
                raise ConfigError(
                    f"{path} is typed by an interface: its module's constructor must put an "
                    "instance there, or its type be a union of modules to choose from"
                )
            return given, _Outcome()  # what is no module holds no tensors
        given = given if isinstance(given, Module) else None
        tried: list[tuple[Any, _Outcome]] = []
        for choice in kind.choices if given is None else (type(given),):
            if issubclass(choice, Tensor):
                tried.append(self.tensor(place, path, shape))
                continue
            module = given
            if module is None:
                with author_code(f"{path} cannot be made", file_of(choice)):
                    module = choice(self.config)
            module.scope = label
            tried.append((module, self.module(module, place, path, shape)))
        # Complete ones first, then those whose shapes fit, then those that use more of the file;
        # ties keep the declared order.
        value, outcome = max(tried, key=_fitness)
        if outcome.own or (outcome.bound and not outcome.missing):
            return value, outcome
        if optional and (given is None or outcome.declared):
            return None, _Outcome(declared=outcome.declared)
        if outcome.missing and len(tried) > 1:
            names = dict.fromkeys(n for _, o in tried for m in o.missing for n in m.tried)
            outcome.missing = [Missing(path, tuple(names))]
        return value, outcome

    def tensor(self, place: Place, path: str, shape: Any) -> tuple[TensorInfo | None, _Outcome]:
        for name in place.candidates:
            info = self.tensors.get(name)
            if info is None:
                continue
            outcome = _Outcome(bound=[(name, path)], own=1, declared=1)
            if shape is not None:
                expected = tuple(None if d is None else value_of(self.config, d) for d in shape)
                if not _fits(expected, info.shape):
                    outcome.wrong.append(WrongShape(name, path, expected, tuple(info.shape)))
            return info, outcome
        return None, _Outcome(missing=[Missing(path, place.candidates)], declared=1)


def _fitness(tried: tuple[Any, _Outcome]) -> tuple[bool, bool, bool, int]:
    outcome = tried[1]
    return outcome.own > 0, not outcome.missing, not outcome.wrong, outcome.own


def _dims_of(module: Module, name: str, shape: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    wanted = module.dims[name]
    if max(wanted) >= len(shape):
        raise ConfigError(
            f"{path}: shape={shape} has {len(shape)} sizes; "
            f"{type(module).__name__}.{name} takes its dims from {max(wanted) + 1}"
        )
    return tuple(shape[i] for i in wanted)


def _merge(tries: list[list[Missing]]) -> list[Missing]:
    """One entry a field, with the names that all candidates would have had."""
    names: dict[str, dict[str, None]] = {}
    for tried in tries:
        for m in tried:
            names.setdefault(m.field, {}).update(dict.fromkeys(m.tried))
    return [Missing(f, tuple(tried)) for f, tried in names.items()]


def _fits(expected: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    if len(expected) > 4:
        return False
    pairs = zip((*expected, 1, 1, 1, 1)[:4], (*found, 1, 1, 1, 1)[:4], strict=True)
    return all(want is None or want == have for want, have in pairs)


class _Nearest:
    """Names of the file like those that were tried: unused ones first, of the same layer."""

    def __init__(self, unused: list[str], everything: list[str]):
        self.pools = [self._by_numbers(unused), self._by_numbers(everything)]

    def __call__(self, tried: tuple[str, ...]) -> tuple[str, ...]:
        for pool in self.pools:
            near: dict[str, None] = {}
            for name in tried[:4]:
                same = pool.get(_numbers(name)) or pool.get((), [])
                near.update(dict.fromkeys(difflib.get_close_matches(name, same[:_COMPARED], 2)))
            if near:
                return tuple(near)[:2]
        return ()

    @staticmethod
    def _by_numbers(names: list[str]) -> dict[tuple[str, ...], list[str]]:
        pool: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            pool.setdefault(_numbers(name), []).append(name)
        return pool


def _numbers(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split(".") if part.isdigit())
