"""The reflective loader: fills the fields of a model with the tensors of a file.

It works on names and shapes alone; no weight is read. Everything that does not fit is collected
into one report instead of failing at the first.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import ConfigError, LoadError
from ..gguf import TensorInfo
from ..ml import Tensor
from .fields import TensorField
from .module import FieldType, Module, module_fields
from .operations import value_of

_SHOWN = 8  # entries of each kind in an exception's message


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
        """Raises `LoadError` with the problems, if there are any."""
        problems = self.problems(strict)
        if not problems:
            return
        shown = "\n  ".join(problems[:_SHOWN])
        more = len(problems) - _SHOWN
        rest = f"\n  … and {more} more; `ggmodel check FILE` lists them all" if more > 0 else ""
        advice = ""
        if not (self.missing or self.wrong):
            advice = "\nstrict=False loads a model in spite of unused tensors"
        raise LoadError(
            f"the file does not fit the architecture {self.architecture!r}:\n  {shown}{rest}{advice}",
            self,
        )


@dataclass
class _Outcome:
    """What filling a part of a model came to."""

    bound: list[tuple[str, str]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    wrong: list[WrongShape] = field(default_factory=list)

    def add(self, other: _Outcome) -> None:
        self.bound += other.bound
        self.missing += other.missing
        self.wrong += other.wrong


@dataclass(frozen=True)
class _Place:
    """Where in the tree of names a module stands: its candidate names and what goes around the
    names one level down."""

    candidates: tuple[str, ...]
    prefix: str = ""
    suffix: str = ""


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
    """
    loader = _Loader(weights, tensors, model.config)
    outcome = loader.module(model, _Place(("",)), "")
    used = {name for name, _ in outcome.bound}
    rest = [name for name in tensors if name not in used]
    ignored = [name for name in rest if any(fnmatch.fnmatchcase(name, p) for p in ignore)]
    unused = [name for name in rest if name not in set(ignored)]
    missing = [
        Missing(m.field, m.tried, tuple(difflib.get_close_matches(m.tried[0], unused or used, 2)))
        for m in outcome.missing
    ]
    return LoadReport(architecture, outcome.bound, missing, outcome.wrong, unused, ignored)


class _Loader:
    def __init__(self, weights: Weights, tensors: Mapping[str, TensorInfo], config: Any):
        self.weights, self.tensors, self.config = weights, tensors, config

    def module(self, module: Module, place: _Place, path: str, shape: Any = None) -> _Outcome:
        """Fills a module under the first candidate name that has any of its tensors."""
        outcomes: list[_Outcome] = []
        for candidate in place.candidates:
            outcome = _Outcome()
            for name, (tag, kind) in module_fields(type(module)).items():
                where = f"{path}.{name}" if path else name
                there = _descend(_Place((candidate,), place.prefix, place.suffix), tag)
                dims = tag.shape
                if dims is None and shape is not None and name in module.dims:
                    dims = tuple(shape[i] for i in module.dims[name])
                outcome.add(self.field(module, name, tag, kind, there, where, dims))
            if outcome.bound:
                return outcome
            outcomes.append(outcome)
        if len(outcomes) == 1:
            return outcomes[0]
        return _Outcome(missing=_merge([o.missing for o in outcomes]))

    def field(
        self,
        owner: Module,
        name: str,
        tag: TensorField,
        kind: FieldType,
        place: _Place,
        path: str,
        shape: Any,
    ) -> _Outcome:
        given = owner.__dict__.get(name)
        if kind.many:
            value, outcome = self.many(given, tag, kind, place, path)
        else:
            value, outcome = self.choose(given, kind, place, path, shape, name)
        setattr(owner, name, value)
        return outcome

    def many(
        self, given: Any, tag: TensorField, kind: FieldType, place: _Place, path: str
    ) -> tuple[list[Any], _Outcome]:
        """A list: as long as declared, or as what the constructor has put there."""
        if tag.n is None and not isinstance(given, list):
            raise ConfigError(f"{path}: a list needs its length, gguf(..., n=...)")
        length = len(given) if isinstance(given, list) else value_of(self.config, tag.n or 0)
        items, outcome = [], _Outcome()
        for i in range(length):
            there = _Place(tuple(_join(c, str(i)) for c in place.candidates), place.prefix, place.suffix)
            item = given[i] if isinstance(given, list) else None
            label = f"{tag.names[0] if tag.names else path}.{i}"
            value, part = self.choose(item, kind, there, f"{path}[{i}]", tag.shape, label)
            items.append(value)
            outcome.add(part)
        return items, outcome

    def choose(
        self, given: Any, kind: FieldType, place: _Place, path: str, shape: Any, label: str
    ) -> tuple[Any, _Outcome]:
        """The value of a field: of several choices the one whose tensors the file has."""
        tried: list[tuple[Any, _Outcome]] = []
        for choice in kind.choices if given is None else (type(given),):
            if issubclass(choice, Tensor):
                tried.append(self.tensor(place, path, shape))
                continue
            module = given if given is not None else choice(self.config)
            module.scope = label
            tried.append((module, self.module(module, place, path, shape)))
        # Complete ones first, then those that use more of the file; ties keep the declared order.
        value, outcome = max(tried, key=lambda t: (not t[1].missing, len(t[1].bound)))
        if not any(o.bound for _, o in tried):
            if kind.optional:
                return None, _Outcome()
            value, outcome = tried[0]
        return value, outcome

    def tensor(self, place: _Place, path: str, shape: Any) -> tuple[Tensor | None, _Outcome]:
        for name in place.candidates:
            info = self.tensors.get(name)
            if info is None:
                continue
            outcome = _Outcome(bound=[(name, path)])
            if shape is not None:
                expected = tuple(None if d is None else value_of(self.config, d) for d in shape)
                if not _fits(expected, info.shape):
                    outcome.wrong.append(WrongShape(name, path, expected, tuple(info.shape)))
            return self.weights.get(name), outcome
        return None, _Outcome(missing=[Missing(path, place.candidates)])


def _descend(place: _Place, tag: TensorField) -> _Place:
    """Where a field stands, given where its module does."""
    if not tag.names:
        return _Place(place.candidates, place.prefix + tag.prefix, tag.suffix + place.suffix)
    names = [place.prefix + name + place.suffix for name in tag.names]
    outer = ("",) if tag.root else place.candidates
    return _Place(tuple(_join(c, n) for c in outer for n in names), tag.prefix, tag.suffix)


def _join(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer else name


def _merge(tries: list[list[Missing]]) -> list[Missing]:
    """One entry a field, with the names that all candidates would have had."""
    names: dict[str, tuple[str, ...]] = {}
    for tried in tries:
        for m in tried:
            names[m.field] = names.get(m.field, ()) + m.tried
    return [Missing(f, tried) for f, tried in names.items()]


def _fits(expected: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    pairs = zip((*expected, 1, 1, 1)[:4], (*found, 1, 1, 1)[:4], strict=False)
    return all(want is None or want == have for want, have in pairs)
