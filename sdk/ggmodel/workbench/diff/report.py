"""Reports of a comparison: a row and a verdict a module, and a page of HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader

from ...ml.node import Node
from ..activations import Errors, factor_of
from ..nodes import module_of
from ..observe import ModuleCall, Recording

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
        of_text: the NMSE of its input's rows for tokens of the text, where the prompt has an item;
            None where they could not be told.
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
    of_text: float | None = None
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
        input_error = 0.0 if first.input is None else first.input.nmse
        rows = self.rows if first.token is None else self.decode
        inside = (r for r in rows if r is not first and within(r.path, first.path))
        most = max(GROWTH * input_error, first.bound)
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


_CLEARLY = 100  # an error so many times smaller is another one


@dataclass
class Wiring:
    """How modules pass results on.

    Attributes:
        readers: module → the next ones that read its result, and whether something is added on the
            way, in which its error may drown.
        returned: module → the module inside it whose result it returns as it is.
        narrower: modules whose counterparts hold others that are outside of them here.
        authors: module → name of the module, by names of ops, that has made its input.
        alone: modules that are given nothing that was computed before.
        tower: modules of the graph of an image.
        cached: path of a module → the error of its input for the tokens before, which it may see.
    """

    readers: dict[ModuleDiff, list[tuple[ModuleDiff, bool]]] = field(default_factory=dict)
    returned: dict[ModuleDiff, ModuleDiff] = field(default_factory=dict)
    narrower: set[ModuleDiff] = field(default_factory=set)
    authors: dict[ModuleDiff, str] = field(default_factory=dict)
    alone: set[ModuleDiff] = field(default_factory=set)
    tower: list[ModuleDiff] = field(default_factory=list)
    cached: Mapping[str, float] = field(default_factory=dict)

    def add(self, recording: Recording, made: Sequence[tuple[ModuleDiff, ModuleCall]]) -> None:
        """Adds the modules of a graph."""
        first: dict[int, ModuleDiff] = {}
        for row, call in made:
            if call.input is None:
                self.alone.add(row)
            elif call.input.op is not None:
                self.authors[row] = module_of(call.input)
            if call.result is not None:
                inner = first.setdefault(call.result.uid, row)
                if within(inner.path, row.path):
                    self.returned[row] = inner
        find_readers(recording, made, self.readers)


def find_readers(
    recording: Recording,
    made: Sequence[tuple[ModuleDiff, ModuleCall]],
    readers: dict[ModuleDiff, list[tuple[ModuleDiff, bool]]],
) -> None:
    """Adds the readers of all modules in a graph."""
    after: dict[int, list[Node]] = {}
    for node in recording.graph.schedule:
        for source in node.sources:
            if source is not None:
                after.setdefault(source.uid, []).append(node)
    reads: dict[int, list[ModuleDiff]] = {}
    for row, call in made:
        if call.input is not None:
            reads.setdefault(call.input.uid, []).append(row)
    for row, call in made:
        if call.result is None:
            continue
        next_readers = readers.setdefault(row, [])
        stack, visited = [(call.result, False)], set[int]()
        while stack:
            node, mixed = stack.pop()
            if node.uid in visited:
                continue
            visited.add(node.uid)
            if node.uid in reads:
                next_readers += [(reader, mixed) for reader in reads[node.uid]]
                continue
            for user in after.get(node.uid, ()):
                stack.append((user, mixed or (user.op is not None and user.op.name == "add")))


def judge(row: ModuleDiff, before: Sequence[ModuleDiff], wiring: Wiring) -> None:
    """Sets the verdict on a module with a result.

    Args:
        before: the modules computed before it, judged.
    """
    if row.result is None or row.verdict == "unused":
        return
    error = row.result.nmse
    if error <= row.bound:
        row.verdict = "equal"
        return
    inside = any(r.wrong and within(r.path, row.path) for r in before)
    # A module left out makes the next one read the same, rightly read there.
    shared = any(r.name == row.reads and r.input and r.input.nmse <= r.bound for r in before)
    if row.reads and not shared and not any(r.wrong for r in before):
        row.verdict = "diverges"
        row.note = (
            f"it reads what {row.reads} reads in the reference: are the two modules' names in the "
            "checkpoint (hf=) swapped?"
        )
        return
    allowed = row.bound + GROWTH * _inherited(row, before, wiring)
    if inside or error <= allowed:
        row.verdict = "follows"
        return
    readers = _outermost(wiring.readers.get(row, []))
    inner = wiring.returned.get(row)
    if inner is not None and inner.verdict == "equal" and row in wiring.narrower:
        row.verdict = "elsewhere"
        row.note = row.note or f"it returns the result of {inner.path}, which agrees"
        return
    # A reader's other inputs may carry errors of their own, such as the rows of an image.
    fine = (r.result.nmse for r in before if r.result and r.verdict in ("equal", "follows"))
    small = min(error / _CLEARLY, GROWTH * max(fine, default=0.0))

    def agrees(reader: ModuleDiff, mixed: bool) -> bool:
        limit = allowed if mixed else max(allowed, small)
        return reader.input is not None and reader.input.nmse <= limit

    if readers and all(agrees(*reader) for reader in readers):
        row.verdict = "elsewhere"
        row.note = row.note or "its readers agree with the reference"
        return
    row.verdict = "diverges"
    if (factor := factor_of(row.result)) is not None:
        row.note = f"the reference's is {factor:.6g} times that"
        for reader, _ in readers[:1]:
            if (left := factor_of(reader.input)) is not None:
                row.note += f"; where {reader.path or 'the model'} reads it, {left:.6g} times"


def _inherited(row: ModuleDiff, before: Sequence[ModuleDiff], wiring: Wiring) -> float:
    """The error of a module's input."""
    if row.input is not None:
        return max(row.input.nmse, wiring.cached.get(row.path, 0.0))
    if any(r.wrong for r in before):
        return math.inf
    # The reference may lay out the input in another way; it may read rows of an image.
    makers = [r for r in before if any(row is reader for reader, _ in wiring.readers.get(r, ()))]
    makers += [] if row in wiring.tower else wiring.tower
    fine = (r.result.nmse for r in makers if r.result and r.verdict in ("equal", "follows"))
    return max(fine, default=0.0)


def _outermost(readers: Sequence[tuple[ModuleDiff, bool]]) -> list[tuple[ModuleDiff, bool]]:
    """Readers that are not inside another one whose input was compared: those may read the tensor
    where the reference has another, by a fault of the outer one."""
    compared = [r.path for r, _ in readers if r.input is not None]
    return [(r, m) for r, m in readers if not any(within(r.path, o) for o in compared)]


def blame_author(
    rows: Sequence[ModuleDiff], wiring: Wiring, places: Mapping[str, ModuleDiff]
) -> None:
    """Blames a module whose result cannot be compared, or the model itself, if it has made the
    first input of another module that differs without an error before. No such input is in a model
    whose result agrees, or it is made up for.

    Args:
        rows: judged.
        places: names of ops → the module's row.
    """
    if any(row.verdict == "equal" and not row.path for row in rows):
        return
    largest = 0.0  # error of a result so far, which an input may have
    for row in rows:
        if row.wrong:
            return
        author = places.get(wiring.authors.get(row, ""))
        input_error = 0.0 if row.input is None else row.input.nmse
        unjudged = author is not None and (not author.path or author.result is None)
        if author is not None and unjudged and input_error > max(row.bound, GROWTH * largest):
            author.verdict = "diverges"
            author.note = f"the input of {row.path} is the first that differs"
            return
        if row.result is not None and row.verdict in ("equal", "follows"):
            largest = max(largest, row.result.nmse)


def blame_left_out(rows: Sequence[ModuleDiff], wiring: Wiring) -> None:
    """Blames the module of a tower that is not compared, if the first module of the text diverges,
    and what reads it differs in the rows of the item alone.

    Args:
        rows: judged.
    """
    first = next((row for row in rows if row.wrong), None)
    left_out = [row for row in wiring.tower if row.name is None]
    if first is None or first.input is not None or not left_out:
        return
    readers = (reader for reader, _ in wiring.readers.get(first, ()))
    if any(r.of_text is not None and r.of_text <= r.bound for r in readers):
        first.verdict, first.note = "elsewhere", "its readers agree for the text"
        left_out[-1].verdict = "diverges"
        left_out[-1].note = "it is not compared; the rows that it makes are the first that differ"


_BEST, _WORST = -14, 0  # powers of ten of the NMSE that are green and red


def page(d: Diff) -> str:
    """The whole page."""
    folder = FileSystemLoader(Path(__file__).parent)
    html = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=folder)
    versions = ", ".join(f"{name} {version}" for name, version in d.versions.items())
    variables = {
        "d": d,
        "groups": by_layer(d.rows),
        "versions": versions,
        "worst": worst,
        "hue": _hue,
    }
    return html.get_template("page.html").render(variables).lstrip() + "\n"


def _hue(nmse: float) -> str:
    """A colour from green to red, by the logarithm."""
    power = math.log10(nmse) if 0 < nmse < math.inf else (_BEST if nmse == 0 else _WORST)
    share = min(1.0, max(0.0, (power - _BEST) / (_WORST - _BEST)))
    return f"{140 * (1 - share):.0f}"
