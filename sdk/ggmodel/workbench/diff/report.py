"""The result of a comparison: a row a module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Literal

from ..comparison import Errors

GROWTH = 10
"""How much an error may grow in a module: norms, gates and softmax do that."""

Verdict = Literal["equal", "follows", "elsewhere", "diverges", "unused", "unpaired", "unjudged"]
_JUDGED = ("equal", "follows", "diverges")


@dataclass(eq=False)
class ModuleDiff:
    """A module in both models.

    Attributes:
        path: in the model, "layers[3].attn.q"; "" is the whole model.
        name: in the checkpoint; None without a counterpart.
        kind: its class.
        shape: of the result, ggml order.
        line: of the model's source that made the result.
        input, result: errors against the reference; None where they could not be compared.
        bound: the NMSE that rounding may cause.
        verdict: "equal": within the bound. "follows": no further off than the input explains.
            "elsewhere": it differs, but its readers agree, so the reference draws the line
            between modules elsewhere. "diverges": the error is made here. "unused": the reference
            has it, and nothing here reads its weights. "unpaired", "unjudged": see the note.
        reads: the reference's module, by its name in the checkpoint, that is given the tensor that
            this one reads, while its own counterpart is given another.
        token: the index of the token, computed alone behind those before it; None for the prompt
            as one batch.
    """

    path: str
    name: str | None
    kind: str
    shape: tuple[int, ...] = ()
    line: str = ""
    input: Errors | None = None
    result: Errors | None = None
    bound: float = 0.0
    verdict: Verdict = "unjudged"
    note: str = ""
    reads: str = ""
    token: int | None = None

    @property
    def wrong(self) -> bool:
        """Whether the fault is its own."""
        return self.verdict in ("diverges", "unused")


@dataclass
class Diff:
    """A model compared with its reference.

    Attributes:
        rows: in execution order; submodules come before the module around them.
        others: modules with weights that only the reference has, by its names.
        versions: of the libraries that computed the reference.
        tokens: the prompt.
        decode: rows of a token computed alone, behind the tokens before it as one batch: of the
            first that diverges, else of the last. Empty if the prompt diverges already, and for
            models that only embed.
        unread: tensors of the checkpoint that no field reads, each with the nearest field.
        prompt: the difference between the prompt's tokens here and in the reference; empty if there
            is none.
        remarks: for people.
    """

    model: str
    architecture: str
    rows: list[ModuleDiff]
    others: list[str]
    versions: dict[str, str]
    tokens: list[int]
    decode: list[ModuleDiff] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    prompt: str = ""
    remarks: list[str] = field(default_factory=list)

    @property
    def first(self) -> ModuleDiff | None:
        """The first module that makes an error, in the prompt as one batch or else in a token
        behind it."""
        return next((row for row in (*self.rows, *self.decode) if row.wrong), None)

    @property
    def ok(self) -> bool:
        """Whether nothing diverges, every tensor of the checkpoint is read, and both have the same
        prompt."""
        return self.first is None and not self.unread and not self.prompt

    @property
    def seen_in(self) -> ModuleDiff | None:
        """Inside the first diverging module, the first submodule whose input differs. The error is
        made before it."""
        first = self.first
        if first is None or first.result is None:
            return None
        given = 0.0 if first.input is None else first.input.nmse
        rows = self.rows if first.token is None else self.decode
        inside = (r for r in rows if r is not first and within(r.path, first.path))
        most = max(GROWTH * given, first.bound)
        off = (r for r in inside if r.input is not None and r.input.nmse > most)
        return next((r for r in off if not _made_up_for(r, rows)), None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `first` and `seen_in` are paths."""
        return asdict(self) | {
            "ok": self.ok,
            "first": None if self.first is None else self.first.path,
            "seen_in": None if self.seen_in is None else self.seen_in.path,
        }


def within(path: str, outer: str) -> bool:
    """Whether a module lies inside another."""
    return not outer or path.startswith((f"{outer}.", f"{outer}["))


def worst(rows: Iterable[ModuleDiff]) -> Errors | None:
    """The largest error among judged modules, except inside modules that agree as a whole."""
    rows = [row for row in rows if row.verdict in _JUDGED]
    results = (row.result for row in rows if not _made_up_for(row, rows))
    return max((e for e in results if e is not None), key=lambda e: e.nmse, default=None)


def _made_up_for(row: ModuleDiff, rows: Iterable[ModuleDiff]) -> bool:
    """Whether a module around it agrees, as where heads are in another order within."""
    return any(r.verdict == "equal" and within(row.path, r.path) for r in rows)


def by_layer(rows: Iterable[ModuleDiff]) -> Iterator[tuple[str, list[ModuleDiff]]]:
    """Consecutive rows of one layer, "layers[3]", or of "" outside of layers."""
    for layer, group in groupby(rows, lambda row: row.path[: row.path.find("]") + 1]):
        yield layer, list(group)
