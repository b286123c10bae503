"""`LoadReport`: how the tensors of a file or a checkpoint fit a declaration."""

from __future__ import annotations

import difflib
import fnmatch
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import LoadError

_SHOWN = 8  # entries in an exception's message
_COMPARED = 200  # names that others are compared with, and names compared with each
# Parts of names that towers and their projectors have, in GGUF files and in checkpoints.
_TOWERS = {
    "a vision tower": re.compile(
        r"^(v|mm)\.|(^|\.)(mm_\w+|multi_modal\w*|vision\w*|visual\w*|vit|vpm|img_\w+|image_\w+|"
        r"embed_vision|connector|resampler|aligner)(\.|$)"
    ),
    "an audio tower": re.compile(r"^a\.|(^|\.)(audio\w*|embed_audio|speech\w*)(\.|$)"),
}


@dataclass(frozen=True)
class Missing:
    """A required field without a tensor.

    Attributes:
        field: its path.
        tried: all names looked for; none where the declaration names no counterpart.
        nearest: similar names that exist.
        what: "file" or "checkpoint".
    """

    field: str
    tried: tuple[str, ...]
    nearest: tuple[str, ...] = ()
    what: str = "file"

    def __str__(self) -> str:
        if not self.tried:
            return f"{self.field}: its declaration names no counterpart, hf="
        text = f"{self.field}: no tensor {' or '.join(self.tried)}"
        return text + (f"; the {self.what} has {', '.join(self.nearest)}" if self.nearest else "")


@dataclass(frozen=True)
class WrongShape:
    """A tensor whose shape is not the declared one (ggml order; None stands for any).

    Attributes:
        keys: key and value of the hyperparameters that the declared shape follows from.
    """

    tensor: str
    field: str
    expected: tuple[int | None, ...]
    shape: tuple[int, ...]
    keys: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        want = ", ".join("any" if n is None else str(n) for n in self.expected)
        keys = ", ".join(f"{key} = {value!r:.40}" for key, value in self.keys)
        text = f"{self.tensor} ({self.field}) is {list(self.shape)}, not [{want}]"
        return f"{text} by {keys}" if keys else text


@dataclass
class LoadReport:
    """Which tensor fills which field, and everything that does not fit.

    Attributes:
        bound: (tensor name, path of the field) in order of declaration.
        unused: tensors that no field reads, without those the architecture ignores.
        nearest: unused tensor → the field that reads a tensor of a similar name.
        ignored: tensors that no field reads and the architecture declares as not needed.
        unread_keys: hyperparameters that count and nobody reads, with value and what is supported.
        what: "file" or "checkpoint".
    """

    architecture: str
    bound: list[tuple[str, str]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    wrong: list[WrongShape] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    nearest: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    unread_keys: list[str] = field(default_factory=list)
    what: str = "file"

    def add_unread(self, unread: Mapping[str, str], keys: Mapping[str, str]) -> None:
        """Adds the leftovers of a checkpoint; see `TensorSource.unread`, `unread_keys`."""
        self.unread_keys += keys.values()
        if unread or keys:
            self.what = "checkpoint"
            self.unused += unread
            self.nearest |= {name: near for name, near in unread.items() if near}

    @property
    def unused_lines(self) -> list[str]:
        """One line for each unused tensor, with the nearest field."""
        near = self.nearest
        return [f"{n}; nearest is the field {near[n]}" if n in near else n for n in self.unused]

    def problems(self, strict: bool = True) -> list[str]:
        """One line a problem; unused tensors and unread keys count when strict."""
        lines = [f"missing  {m}" for m in self.missing]
        lines += [f"shape    {w}" for w in self.wrong]
        if strict:
            lines += [f"unused   {line}" for line in self.unused_lines]
            lines += [f"key      {line}" for line in self.unread_keys]
        return lines

    def check(self, strict: bool = True) -> None:
        """Raises `LoadError` with the problems, if there are any. Unused tensors and unread keys
        are problems when strict, otherwise a warning."""
        problems = self.problems(strict)
        if not problems:
            for leftover in (self.unused, self.unread_keys):
                if leftover:
                    names = _cut(leftover, ", ", " and {} more")
                    towers = self._towers() if leftover is self.unused else ""
                    warnings.warn(
                        f"the architecture {self.architecture!r} does not use {names}{towers}",
                        stacklevel=2,
                    )
            return
        more, advice = "\n  … and {} more", self._towers() if strict else ""
        if self.what == "file" or not self.missing:  # other checkpoints cannot be opened
            more += "; `ggmodel check FILE` lists them all"
        if not (self.missing or self.wrong):
            leftovers = {"unused tensors": self.unused, "unread keys": self.unread_keys}
            spite = " and ".join(kind for kind, names in leftovers.items() if names)
            advice += f"\nstrict=False (--no-strict) takes the {self.what} in spite of {spite}"
        misfit = f"the {self.what} does not fit the architecture {self.architecture!r}:\n  "
        raise LoadError(misfit + _cut(problems, "\n  ", more) + advice, self)

    @property
    def towers(self) -> list[str]:
        """A sentence about each tower of a model that sees or hears, if its tensors are unused."""
        counts = {
            tower: sum(bool(names.search(name)) for name in self.unused)
            for tower, names in _TOWERS.items()
        }
        return [
            f"{count} of {len(self.unused)} unused tensors belong to {tower}, which this "
            "architecture does not read"
            for tower, count in counts.items()
            if count
        ]

    def _towers(self) -> str:
        return "".join(f"\n{sentence}" for sentence in self.towers)


def _cut(lines: Sequence[str], between: str, more: str) -> str:
    rest = len(lines) - _SHOWN
    return between.join(lines[:_SHOWN]) + (more.format(rest) if rest > 0 else "")


def compare(
    report: LoadReport, read: Mapping[str, str], there: Iterable[str], ignore: Sequence[str]
) -> LoadReport:
    """Completes a report with the leftovers, and with names near those that are missing.

    Args:
        read: name of a tensor that is read → path of its field.
        there: the names of all tensors.
        ignore: patterns (`fnmatch`) of tensors that may stay unread.
    """
    there = list(there)
    rest = [name for name in there if name not in read]
    report.ignored = [n for n in rest if any(fnmatch.fnmatchcase(n, p) for p in ignore)]
    without = set(report.ignored)
    report.unused = [name for name in rest if name not in without]
    if not (report.missing or report.unused):
        return report
    near = _Nearest(report.unused, there)
    report.missing = [
        replace(m, nearest=near(m.tried) if i < _COMPARED else (), what=report.what)
        for i, m in enumerate(report.missing)
    ]
    fields = {_stem(name): path for name, path in read.items()}
    near = _Nearest(list(fields))
    for name in report.unused[:_COMPARED]:
        if nearest := near((_stem(name),)):
            report.nearest[name] = fields[nearest[0]]
    return report


def _stem(name: str) -> str:
    return name.removesuffix(".weight").removesuffix(".bias")


class _Nearest:
    """Existing names like given ones: those of the first list first, of the same layer."""

    def __init__(self, *lists: list[str]):
        self.pools = [self._by_numbers(names) for names in lists]

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
