"""Runs a model on the input of its reference, and compares values as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...convert.declaration import pairs
from ...errors import ArchitectureError, ConfigError, LoadError
from ...ml.node import Node
from ...ml.quantized import to_float32
from ...model import find_hf
from ...model.walk import Instance, instances, tensors
from ...runner import LoadedModel
from ..activations import Activations
from ..comparison import EXACT, TABLE, bound_of, errors, laid_out
from ..modules import module_of
from ..observe import Call, Recording, See, pixels_of, prompt_with, watch_image, watch_text
from .report import Diff, ModuleDiff, within
from .rows import Orders
from .verdicts import Wiring, blame_author, judge

_MOST_RESULTS = 4  # tensors of one module of the reference that are compared
_TABLES = ("gelu", "gated_gelu")  # ops that read ggml's table
_PLACEHOLDERS = ("image_token_index", "image_token_id")
_WORKBENCH = str(Path(__file__).parents[1])  # the head of most models is called from there


def diff(model: LoadedModel, reference: Activations) -> Diff:
    """Compares a model with its reference on the reference's input.

    Args:
        model: loaded with kv_type "f32" and flash_attention "off", as the reference computes.

    Raises:
        LoadError: the reference has another architecture or another checkpoint.
        PromptError: its prompt does not fit the model.
    """
    net = model.model
    need_same_kind(model, reference.config, "the reference")
    comparing = _Comparing(model, reference)
    ids, pixels = reference.ids, reference.inputs.get("pixel_values")
    numbers = model.prompts.read(ids) if pixels is None else None
    if pixels is not None:
        named = (reference.config.get(key) for key in _PLACEHOLDERS)
        placeholder = next((token for token in named if token), None)
        if not isinstance(placeholder, int):
            raise ConfigError(f"the reference's config names no {' or '.join(_PLACEHOLDERS)}")
        seen = watch_image(model, pixels_of(pixels, reference.image), comparing.begin_tower)
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
    """Raises `LoadError` unless a config names the model's architecture."""
    mine = type(model.model).hf_architectures
    listed = config.get("architectures")
    theirs = listed[0] if isinstance(listed, list) and listed else None
    if mine and theirs not in mine and _stored_as(theirs, config) != model.model.architecture:
        raise LoadError(
            f"{what} is {theirs!r}, and {model.source.name} is {model.model.architecture!r}, which "
            f"goes with {', '.join(mine)}; give the checkpoint that the file was made from"
        )


def _stored_as(hf: str | None, config: dict) -> str | None:
    """The architecture that files of such a checkpoint have; None if no known class serves it."""
    try:
        return find_hf([hf or ""]).stored_as(config)
    except ArchitectureError:
        return None


class _Comparing:
    def __init__(self, model: LoadedModel, reference: Activations):
        self.model, self.reference = model, reference
        self.pairs = {p.path: p for p in pairs(model.model, reference.tensors)}
        self.rows: list[ModuleDiff] = []
        self._wiring, self._orders = Wiring(), Orders()
        self._in_tower = False
        self._places: dict[str, ModuleDiff] = {}  # names of ops → modules
        self._known: set[str] = set()
        self._read: set[int] = set()  # uids of weights

    def begin_tower(self, recording: Recording) -> See:
        """As `begin`, for the graph of an image: layers may have their rows in another order."""
        see = self.begin(recording)
        self._wiring.tower = list(self.rows)

        def in_tower(node: Node, value: np.ndarray) -> None:
            self._in_tower = True
            see(node, value)
            self._in_tower = False

        return in_tower

    def begin(self, recording: Recording) -> See:
        """The first call of each module becomes a row."""
        wanted: dict[int, list[tuple[ModuleDiff, str]]] = {}
        made: list[tuple[ModuleDiff, Call]] = []
        tables = _tables(recording)
        for call in recording.calls:
            path = call.module.path
            if path in self._known:
                continue
            self._known.add(path)
            row = self._places[call.module.scope] = self._row(call, tables)
            made.append((row, call))
            for node, side in ((call.input, "input"), (call.result, "result")):
                if node is not None:
                    wanted.setdefault(node.uid, []).append((row, side))
        self.rows += [row for row, _ in made]
        self._read |= {
            s.owner.uid for node in recording.graph.schedule for s in node.sources if s is not None
        }
        self._wiring.add(recording, made)

        def see(node: Node, value: np.ndarray) -> None:
            for row, side in wanted.get(node.uid, ()):
                self._compare(row, side, node, value)

        return see

    def _row(self, call: Call, tables: list[str]) -> ModuleDiff:
        place, node = call.module, call.result
        pair = self.pairs.get(place.path)
        name = pair.name if pair else "" if not place.path else None
        inside = [t for t in tables if not place.scope or f"{t}.".startswith(f"{place.scope}.")]
        row = ModuleDiff(place.path, name, type(place.module).__name__)
        row.bound = bound_of(place.module) + TABLE * len(inside)
        if node is not None:
            own = node.site is not None and not str(node.site).startswith(_WORKBENCH)
            row.shape, row.line = node.shape, str(node.site) if own else ""
        if name is None:
            row.verdict, row.note = "unpaired", "only here"
        elif node is None:
            row.note = "it returns no tensor"
        elif name not in self.reference.results:
            row.note = "the reference has no result for it"
        return row

    def _compare(self, row: ModuleDiff, side: str, node: Node, value: np.ndarray) -> None:
        source = self.reference.given if side == "input" else self.reference.results
        if row.name is None:
            return
        ours = to_float32(value, node.dtype, node.ne).reshape(node.shape[::-1])
        for theirs in self._candidates(source, row, side):
            fitting = self._fitting(theirs, row, side, node)
            if isinstance(fitting, str):
                row.note = row.note or (fitting if side == "result" else f"its input: {fitting}")
                continue
            if self._in_tower and "[" in row.path:  # what is not in a layer has no other order
                fitting = self._orders.turned(ours, fitting, max(EXACT, row.bound))
            found, best = errors(ours, fitting), getattr(row, side)
            # The nearest of several tensors that the reference's module returns is meant.
            if best is None or found.nmse < best.nmse:
                setattr(row, side, found)

    def _candidates(
        self, source: dict[str, np.ndarray], row: ModuleDiff, side: str
    ) -> Iterator[np.ndarray]:
        """Tensors of the reference that may be meant."""
        name = row.name or ""
        for key in (name, *(f"{name}#{i}" for i in range(1, _MOST_RESULTS))):
            if key not in source:
                break
            yield source[key]
        if side == "result" and row in self._wiring.alone and name in source:
            given = self.reference.given.get(name)
            if given is not None and given.shape == source[name].shape:
                yield source[name] - given  # it adds its result to an input that ours is not given

    def _fitting(
        self, theirs: np.ndarray, row: ModuleDiff, side: str, node: Node
    ) -> np.ndarray | str:
        """The reference's tensor in this module's layout, or the reason why it cannot be had."""
        pair = self.pairs.get(row.path)
        if side == "result" and pair is not None:
            try:
                theirs = pair.results(theirs, self.model.model.config)
            except (ConfigError, ValueError, IndexError) as error:
                return str(error)
        return laid_out(theirs, node.shape[::-1])

    def finish(self) -> list[ModuleDiff]:
        """All rows, judged."""
        order = {name: i for i, name in enumerate(self.reference.order)}
        unused: list[str] = []
        for place in instances(self.model.model):
            row = self._uncalled(place)
            if row is None or any(within(row.path, outer) for outer in unused):
                continue
            if row.verdict == "unused":
                unused.append(row.path)
            self._insert(row, order)
        for i, row in enumerate(self.rows):
            judge(row, self.rows[:i], self._wiring)
        blame_author(self.rows, self._wiring, self._places)
        whole = next((row for row in self.rows if not row.path), None)
        if whole is not None and whole.result is None:  # even if all else agrees
            whole.verdict = "diverges"
        return self.rows

    def _uncalled(self, place: Instance) -> ModuleDiff | None:
        """The row of a module that only the reference calls."""
        pair = self.pairs.get(place.path)
        if place.path in self._known or pair is None or pair.name not in self.reference.results:
            return None
        row = ModuleDiff(place.path, pair.name, type(place.module).__name__)
        held = list(tensors(place.module))
        if any(w.uid in self._read for w in held):
            row.note = "it is not called, but its weights are read"
        elif held:
            row.verdict, row.note = "unused", "the model never calls it"
        return row

    def _insert(self, row: ModuleDiff, order: dict[str, int]) -> None:
        assert row.name is not None
        at = order[row.name]
        later = (
            i for i, r in enumerate(self.rows) if r.name is not None and order.get(r.name, -1) > at
        )
        self.rows.insert(next(later, len(self.rows)), row)


def _tables(recording: Recording) -> list[str]:
    """The modules that read ggml's tables, one entry for each op."""
    ops = (n for n in recording.graph.schedule if n.op is not None and n.op.name in _TABLES)
    return [module_of(node) for node in ops]
