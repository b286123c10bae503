"""A model beside its reference, module by module: where do they part?

Which module belongs to which follows from the declarations alone. Every module is judged by what it
makes of its input: one that merely hands on an error is not to blame. The first that makes one is,
and of modules within each other the innermost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..convert.declaration import pairs
from ..errors import ConfigError, LoadError
from ..ml.node import Node
from ..ml.quantized import to_float32
from ..model.walk import Instance, instances, tensors
from ..runner import LoadedModel
from .activations import Activations
from .comparison import TABLE, Errors, bound_of, errors, laid_out
from .modules import module_of
from .observe import (
    Call,
    Recording,
    See,
    pixels_of,
    prompt_with,
    watch_image,
    watch_text,
)

# An error may grow this much from a module's input to its result: norms, gates and softmax do that.
_GROWTH = 10
_CLEARLY = 100  # so much further off is another thing
_FINE = ("equal", "follows")
_JUDGED = (*_FINE, "diverges")
_MOST_RESULTS = 4  # tensors of a module of the reference that are looked at
_TABLES = ("gelu", "gated_gelu")  # ops that read ggml's table
_PLACEHOLDERS = ("image_token_index", "image_token_id")

_HERE = str(Path(__file__).parent)  # the head of most models is called from here

Verdict = Literal["equal", "follows", "elsewhere", "diverges", "unused", "unpaired", "unjudged"]


@dataclass(eq=False)
class Row:
    """A module, in both models.

    Attributes:
        path: in the model, "layers[3].attn.q"; "" is the whole.
        name: in names of the checkpoint; None without a counterpart.
        kind: its class.
        shape: of the result, ggml order.
        line: of the model's source that made the result.
        input, result: how far they are from the reference's; None where that cannot be said.
        bound: the NMSE that rounding may make.
        verdict: "equal" is within that. "follows": no further off than the input explains.
            "elsewhere": it differs, but what reads it agrees, so the reference draws the line
            between modules elsewhere. "diverges": it makes an error. "unused": the reference has
            it, and here nothing reads its weights. "unpaired", "unjudged": see the note.
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
    readers: list[tuple[Row, bool]] = field(default_factory=list, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {k: v for k, v in vars(self).items() if k not in ("input", "result", "readers")} | {
            side: None if (e := getattr(self, side)) is None else asdict(e)
            for side in ("input", "result")
        }

    @property
    def wrong(self) -> bool:
        """Whether the fault is its own."""
        return self.verdict in ("diverges", "unused")


@dataclass
class Diff:
    """What came out.

    Attributes:
        rows: in execution order; what is inside of a module comes before it.
        others: modules with weights that only the reference has, by its names.
        versions: of what computed the reference.
        tokens: the prompt.
    """

    model: str
    architecture: str
    rows: list[Row]
    others: list[str]
    versions: dict[str, str]
    tokens: list[int]

    @property
    def first(self) -> Row | None:
        """The first module that makes an error."""
        return next((row for row in self.rows if row.wrong), None)

    @property
    def ok(self) -> bool:
        """Whether nothing diverges."""
        return self.first is None

    @property
    def seen_in(self) -> Row | None:
        """Of a first module with others inside: the first of these that is given something else
        than in the reference. The error is made before it."""
        first = self.first
        if first is None or first.result is None:
            return None
        given = 0.0 if first.input is None else first.input.nmse
        inside = (r for r in self.rows if r is not first and _within(r.path, first.path))
        most = max(_GROWTH * given, first.bound)
        off = (r for r in inside if r.input is not None and r.input.nmse > most)
        return next((r for r in off if not _made_up_for(r, self.rows)), None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `first` is the path of the first module that diverges, `seen_in` that of the
        first inside of it that is given something else."""
        return vars(self) | {
            "ok": self.ok,
            "first": None if self.first is None else self.first.path,
            "seen_in": None if self.seen_in is None else self.seen_in.path,
            "rows": [row.as_dict() for row in self.rows],
        }


def diff(model: LoadedModel, reference: Activations) -> Diff:
    """Runs a model on the input of a reference and compares.

    Args:
        model: loaded with kv_type "f32" and flash_attention "off", as the reference computes.

    Raises:
        LoadError: the reference is of another architecture, or of another checkpoint.
        PromptError: its prompt does not fit the model.
    """
    net = model.model
    need_same_kind(model, reference.config, "the reference")
    comparing = _Comparing(model, reference)
    ids, pixels = reference.ids, reference.inputs.get("pixel_values")
    numbers = model.prompts.read(ids) if pixels is None else None
    if pixels is not None:
        placeholder = next((reference.config.get(k) for k in _PLACEHOLDERS), None)
        placeholder = placeholder or reference.config.get(_PLACEHOLDERS[1])
        if not isinstance(placeholder, int):
            raise ConfigError(f"the reference's config names no {' or '.join(_PLACEHOLDERS)}")
        seen = watch_image(model, pixels_of(pixels, reference.image), comparing.begin)
        numbers = prompt_with(model, ids, placeholder, seen)
    assert numbers is not None
    watch_text(model, numbers, comparing.begin)
    rows = comparing.finish()
    if all(row.result is None for row in rows):
        raise LoadError(
            f"the reference has no result of the size of one in {model.source.name}; give the "
            "checkpoint that the file was made from"
        )
    return Diff(
        model.source.name, net.architecture, rows, reference.others, reference.versions, ids
    )


def need_same_kind(model: LoadedModel, config: dict, what: str) -> None:
    """Raises `LoadError` unless a config is of the model's architecture."""
    mine = type(model.model).hf_architectures
    listed = config.get("architectures")
    theirs = listed[0] if isinstance(listed, list) and listed else None
    if mine and theirs not in mine:
        raise LoadError(
            f"{what} is {theirs!r}, and {model.source.name} is {model.model.architecture!r}, which "
            f"goes with {', '.join(mine)}; give the checkpoint that the file was made from"
        )


class _Comparing:
    """Compares values as they come."""

    def __init__(self, model: LoadedModel, reference: Activations):
        self.model, self.reference = model, reference
        self.pairs = {p.path: p for p in pairs(model.model, reference.tensors)}
        self.rows: list[Row] = []
        self._known: set[str] = set()
        self._read: set[int] = set()  # weights, by uid

    def begin(self, recording: Recording) -> See:
        """The first call of each module becomes a row."""
        wanted: dict[int, list[tuple[Row, str]]] = {}
        made: list[tuple[Row, Call]] = []
        tables = _tables(recording)
        for call in recording.calls:
            path = call.module.path
            if path in self._known:
                continue
            self._known.add(path)
            row = self._row(call, tables)
            made.append((row, call))
            for node, side in ((call.input, "input"), (call.result, "result")):
                if node is not None:
                    wanted.setdefault(node.uid, []).append((row, side))
        self.rows += [row for row, _ in made]
        self._read |= {
            (s.base or s).uid for node in recording.graph.schedule for s in node.sources if s
        }
        _find_readers(recording, made)

        def see(node: Node, value: np.ndarray) -> None:
            for row, side in wanted.get(node.uid, ()):
                self._compare(row, side, node, value)

        return see

    def _row(self, call: Call, tables: list[str]) -> Row:
        place, node = call.module, call.result
        pair = self.pairs.get(place.path)
        name = pair.name if pair else "" if not place.path else None
        inside = [t for t in tables if not place.scope or f"{t}.".startswith(f"{place.scope}.")]
        row = Row(place.path, name, type(place.module).__name__)
        row.bound = bound_of(place.module) + TABLE * len(inside)
        if node is not None:
            own = node.site is not None and not str(node.site).startswith(_HERE)
            row.shape, row.line = node.shape, str(node.site) if own else ""
        if name is None:
            row.verdict, row.note = "unpaired", "only here"
        elif node is None:
            row.note = "it gives no tensor"
        elif name not in self.reference.results:
            row.note = "the reference has no result of it"
        return row

    def _compare(self, row: Row, side: str, node: Node, value: np.ndarray) -> None:
        source = self.reference.given if side == "input" else self.reference.results
        if row.name is None:
            return
        ours = to_float32(value, node.dtype, node.ne).reshape(node.shape[::-1])
        for name in (row.name, *(f"{row.name}#{i}" for i in range(1, _MOST_RESULTS))):
            if name not in source:
                break
            fitting = self._fitting(source[name], row, side, node)
            if isinstance(fitting, str):
                row.note = row.note or (fitting if side == "result" else f"its input: {fitting}")
                continue
            found, best = errors(ours, fitting), getattr(row, side)
            # Of several tensors that the reference's module gives, the nearest is meant.
            if best is None or found.nmse < best.nmse:
                setattr(row, side, found)

    def _fitting(self, theirs: np.ndarray, row: Row, side: str, node: Node) -> np.ndarray | str:
        """The reference's tensor as this module would give it, or why there is none."""
        pair = self.pairs.get(row.path)
        if side == "result" and pair is not None:
            try:
                theirs = pair.results(theirs, self.model.model.config)
            except (ConfigError, ValueError, IndexError) as error:
                return str(error)
        return laid_out(theirs, node.shape[::-1])

    def finish(self) -> list[Row]:
        """All rows, judged."""
        order = {name: i for i, name in enumerate(self.reference.order)}
        unused: list[str] = []
        for place in instances(self.model.model):
            row = self._uncalled(place)
            if row is None or any(_within(row.path, outer) for outer in unused):
                continue
            if row.verdict == "unused":
                unused.append(row.path)
            self._insert(row, order)
        for i, row in enumerate(self.rows):
            _judge(row, self.rows[:i])
        whole = next((row for row in self.rows if not row.path), None)
        if whole is not None and whole.result is None:  # whatever else agrees, they do not
            whole.verdict = "diverges"
        return self.rows

    def _uncalled(self, place: Instance) -> Row | None:
        """A module that the reference calls and this model does not."""
        pair = self.pairs.get(place.path)
        if place.path in self._known or pair is None or pair.name not in self.reference.results:
            return None
        row = Row(place.path, pair.name, type(place.module).__name__)
        held = list(tensors(place.module))
        if any(w.uid in self._read for w in held):
            row.note = "it is not called, its weights are read by themselves"
        elif held:
            row.verdict, row.note = "unused", "the model never calls it"
        return row

    def _insert(self, row: Row, order: dict[str, int]) -> None:
        assert row.name is not None
        at = order[row.name]
        later = (
            i for i, r in enumerate(self.rows) if r.name is not None and order.get(r.name, -1) > at
        )
        self.rows.insert(next(later, len(self.rows)), row)


def _tables(recording: Recording) -> list[str]:
    """The modules that look something up in ggml's tables, one entry an op."""
    ops = (n for n in recording.graph.schedule if n.op is not None and n.op.name in _TABLES)
    return [module_of(node) for node in ops]


def _find_readers(recording: Recording, made: list[tuple[Row, Call]]) -> None:
    """For each row those whose input is computed of its result, with no other module between, and
    whether something else is added on the way, in which an error may drown."""
    after: dict[int, list[Node]] = {}
    for node in recording.graph.schedule:
        for source in node.sources:
            if source is not None:
                after.setdefault(source.uid, []).append(node)
    reads: dict[int, list[Row]] = {}
    for row, call in made:
        if call.input is not None:
            reads.setdefault(call.input.uid, []).append(row)
    for row, call in made:
        if call.result is None:
            continue
        stack, seen = [(call.result, False)], set[int]()
        while stack:
            node, mixed = stack.pop()
            if node.uid in seen:
                continue
            seen.add(node.uid)
            if node.uid in reads:
                row.readers += [(reader, mixed) for reader in reads[node.uid]]
                continue
            for user in after.get(node.uid, ()):
                stack.append((user, mixed or (user.op is not None and user.op.name == "add")))


def _judge(row: Row, before: list[Row]) -> None:
    if row.result is None or row.verdict == "unused":
        return
    found = row.result.nmse
    if found <= row.bound:
        row.verdict = "equal"
        return
    inside = any(r.wrong and _within(r.path, row.path) for r in before)
    handed = math.inf if row.input is None and any(r.wrong for r in before) else 0.0
    handed = row.input.nmse if row.input is not None else handed
    allowed = row.bound + _GROWTH * handed
    if inside or found <= allowed:
        row.verdict = "follows"
    elif row.readers and all(_agrees(*reader, row, allowed, before) for reader in row.readers):
        row.verdict = "elsewhere"
        row.note = row.note or "what reads it agrees"
    else:
        row.verdict = "diverges"


def _agrees(reader: Row, mixed: bool, row: Row, allowed: float, before: list[Row]) -> bool:
    """Whether what reads a row's result agrees with the reference, though the result does not."""
    assert row.result is not None
    if reader.input is None:
        return False
    # What else it reads may carry errors of its own, such as the rows of an image.
    usual = max((r.result.nmse for r in before if r.result and r.verdict in _FINE), default=0.0)
    small = 0.0 if mixed else min(row.result.nmse / _CLEARLY, _GROWTH * usual)
    return reader.input.nmse <= max(allowed, small)


def _within(path: str, outer: str) -> bool:
    return not outer or path.startswith((f"{outer}.", f"{outer}["))


def worst(rows: Iterable[Row]) -> Errors | None:
    """Of the module that is furthest off, among those that could be judged and that matter."""
    rows = [row for row in rows if row.verdict in _JUDGED]
    results = (row.result for row in rows if not _made_up_for(row, rows))
    return max((e for e in results if e is not None), key=lambda e: e.nmse, default=None)


def _made_up_for(row: Row, rows: Iterable[Row]) -> bool:
    """Whether a module around it agrees: then heads may be in another order within, or the like."""
    return any(r.verdict == "equal" and _within(row.path, r.path) for r in rows)


def by_layer(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Rows next to each other of the same layer, "layers[3]", or "" outside of layers."""
    group: list[Row] = []
    title = ""
    for row in rows:
        bracket = row.path.find("]")
        layer = row.path[: bracket + 1] if bracket >= 0 else ""
        if group and layer != title:
            yield title, group
            group = []
        title = layer
        group.append(row)
    if group:
        yield title, group
