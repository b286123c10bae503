"""A model beside its reference, module by module: the first one that computes something else.

Modules are paired by the declarations alone. Each is judged by what it makes of its input: a module
that merely passes an error on is not at fault. Nested modules are judged innermost first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ...convert.declaration import pairs, plan
from ...convert.keys import listed_classes
from ...errors import ArchitectureError, ConfigError, LoadError
from ...gguf_file import DType
from ...ml.node import Node
from ...ml.tensor import to_float32
from ...model import Module, find_hf
from ...model.walk import Instance, instances, tensors
from ...runner import LoadedModel
from ..activations import EXACT, Activations, errors, laid_out
from ..nodes import module_of
from ..observe import (
    Begin,
    ModuleCall,
    Recording,
    See,
    prompt_with,
    watch_decode,
    watch_item,
    watch_source,
    watch_text,
)
from ..routers import Routing, routed
from .inputs import fitting_context, placeholder_of
from .report import (
    GROWTH,
    Diff,
    ModuleDiff,
    Wiring,
    blame_author,
    blame_left_out,
    judge,
    within,
)

_MOST = 4096  # rows that are matched: their distances are a square matrix


class Orders:
    """Orders of rows, found where all rows of two results agree one by one, and kept for all
    later ones with as many rows."""

    def __init__(self) -> None:
        self._known: dict[int, np.ndarray] = {}

    def turned(self, ours: np.ndarray, theirs: np.ndarray, bound: float) -> np.ndarray:
        """The reference's rows [n, d] in our order; as they are while no order is known.

        Args:
            bound: the NMSE up to which rows agree.
        """
        if ours.ndim != 2 or ours.shape != theirs.shape or len(ours) > _MOST:
            return theirs
        if len(ours) not in self._known:
            if errors(ours, theirs).nmse <= bound:
                order = np.arange(len(ours))
            else:
                order = _matched(ours, theirs)
                if errors(ours, theirs[order]).nmse > bound:
                    return theirs
            self._known[len(ours)] = order
        return theirs[self._known[len(ours)]]


def _matched(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """For each of our rows the nearest of theirs that is not taken; they may have more."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    distances = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
    order = np.zeros(len(a), np.int64)
    for i, row in enumerate(distances):
        order[i] = row.argmin()
        distances[:, order[i]] = np.inf
    return order


_MOST_RESULTS = 4  # tensors of one module of the reference that are compared
_MOST_ALONE = 3  # tokens that are computed alone, behind the others
# Ops of GELU and its function; those by tanh may read ggml's table.
_GELUS = {"gelu": "tanh", "gated_gelu": "tanh", "gelu_erf": "erf"}
_WORKBENCH = str(Path(__file__).parents[1])  # the head of most models is called from there


def diff(model: LoadedModel, reference: Activations) -> Diff:
    """Compares a model with its reference on the reference's input.

    Prompts are computed as one batch. If they agree, the last tokens are also computed one by one,
    behind the others, and compared with the same rows.

    Args:
        model: loaded with kv_type "f32" and flash_attention "off", as the reference computes.

    Raises:
        LoadError: the reference has another architecture or another checkpoint.
        PromptError: its prompt does not fit the model.
    """
    with routed(model, reference.routers) as routing:
        return _diff(model, reference, routing)


def _diff(model: LoadedModel, reference: Activations, routing: Routing) -> Diff:
    net = model.model
    need_same_kind(model, reference.config, "the reference")
    comparing = _Comparing(model, reference, routing)
    ids, kind = reference.ids, reference.kind
    if not kind and net.prompt_item:
        numbers = watch_source(model, ids, comparing.begin_tower)
    elif not kind:
        numbers = model.prompts.read(ids)
    else:
        try:
            taken = net.reference_item(kind, reference.inputs, reference.image)
        except (KeyError, StopIteration):
            raise LoadError(
                f"the reference has no array that {type(net).__name__}.reference_item takes as its "
                f"{kind}; its inputs are {', '.join(reference.inputs)}"
            ) from None
        model.engine.images.modality(kind).check(kind, taken.values)
        embeddings = watch_item(model, kind, taken, comparing.begin_tower)
        numbers = prompt_with(model, ids, placeholder_of(reference.config, kind), embeddings)
        comparing.of_text = numbers >= 0
    watch_text(model, numbers, comparing.begin)
    rows = comparing.finish()
    if all(row.result is None for row in rows):
        raise LoadError(
            f"the reference has no result of the size of one in {model.source.name}; give the "
            "checkpoint that the file was made from"
        )
    comparison = Diff(
        model.source.name, net.architecture, rows, reference.others, reference.versions, ids
    )
    context = fitting_context(reference.config, len(ids))
    if context is not None and model.context_length > context:
        comparison.remarks.append(
            f"LongRoPE: transformers takes its factors for short texts for {len(ids)} tokens, this "
            f"model, loaded for {model.context_length}, those for long ones; load it with "
            f"context_length={context}"
        )
    if reference.routers and routing.problem:
        comparison.remarks.append(f"{routing.problem}: each computes with its own")
    comparison.unread = plan(type(net), net.config, reference.tensors).report.unused_lines
    if comparison.first is None and not net.only_embeds:
        comparison.decode = _decoded(model, reference, routing, numbers, rows)
    return comparison


def _decoded(
    model: LoadedModel,
    reference: Activations,
    routing: Routing,
    numbers: np.ndarray,
    rows: list[ModuleDiff],
) -> list[ModuleDiff]:
    """See `Diff.decode`. `rows` are of the whole prompt."""
    input_errors = {row.path: row.input.nmse for row in rows if row.input is not None}
    n, images = len(numbers), np.flatnonzero(numbers < 0)
    start = max(1, n - _MOST_ALONE, int(images[-1]) + 1 if images.size else 0)
    alone: list[_Comparing] = []

    def begin(i: int) -> Begin:
        alone.append(_Comparing(model, reference, routing, i, input_errors))
        return alone[-1].begin

    if start < n:
        watch_decode(model, numbers, start, begin)
    each = [comparing.judged() for comparing in alone]
    wrong = (rows for rows in each if any(row.wrong for row in rows))
    return next(wrong, each[-1] if each else [])


def types_of(module: Module) -> set[DType]:
    """The types of matrices that a module rounds numbers to: tables of indices are none."""
    return {w.dtype for w in tensors(module) if w.dim(1) > 1} - {DType.I32}


def need_same_kind(model: LoadedModel, config: dict, what: str) -> None:
    """Raises `LoadError` unless a config names the model's architecture."""
    mine = type(model.model).hf_architectures
    theirs = next(iter(listed_classes(config)), None)
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
    """Compares one run.

    Args:
        token: index of the token that it computes; None for the whole prompt.
        input_errors: module → the error of its input in the whole prompt, which is in the cache.
    """

    def __init__(
        self,
        model: LoadedModel,
        reference: Activations,
        routing: Routing,
        token: int | None = None,
        input_errors: Mapping[str, float] | None = None,
    ):
        self.model, self.reference, self.routing, self.token = model, reference, routing, token
        self.pairs = {p.path: p for p in pairs(model.model, reference.tensors)}
        self.rows: list[ModuleDiff] = []
        self._wiring, self._orders = Wiring(cached=input_errors or {}), Orders()
        self.of_text: np.ndarray | None = None  # which tokens are no rows of an item
        self._in_tower = False
        self._places: dict[str, ModuleDiff] = {}  # names of ops → modules
        self._known: set[str] = set()
        self._read: set[int] = set()  # uids of weights
        self._types = {DType.F32}  # of weights read so far
        self._others: dict[ModuleDiff, str] = {}  # modules with another function, and which

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
        rows_of: dict[int, list[tuple[ModuleDiff, str]]] = {}
        made: list[tuple[ModuleDiff, ModuleCall]] = []
        gelus = _gelus(recording)
        for call in recording.calls:
            path = call.module.path
            if path in self._known:
                continue
            self._known.add(path)
            row = self._places[call.module.scope] = self._row(call, gelus)
            made.append((row, call))
            for node, side in ((call.input, "input"), (call.result, "result")):
                if node is not None:
                    rows_of.setdefault(node.uid, []).append((row, side))
        self.rows += [row for row, _ in made]
        self._read |= {
            s.owner.uid for node in recording.graph.schedule for s in node.sources if s is not None
        }
        self._wiring.add(recording, made)

        def see(node: Node, value: np.ndarray) -> None:
            self.routing.see(node, value)
            for row, side in rows_of.get(node.uid, ()):
                self._compare(row, side, node, value)

        return see

    def _row(self, call: ModuleCall, gelus: list[tuple[str, str]]) -> ModuleDiff:
        place, node = call.module, call.result
        pair = self.pairs.get(place.path)
        name = pair.name if pair else "" if not place.path else None
        around = f"{place.scope}." if place.scope else ""
        inside = Counter(kind for kind, scope in gelus if f"{scope}.".startswith(around))
        row = ModuleDiff(place.path, name, type(place.module).__name__, token=self.token)
        by_erf, by_tanh = self.reference.gelus.get(name or "", (0, 0))
        self._types |= types_of(place.module)
        row.bound = self.reference.bound(name or "", self._types, self.token is not None)
        if inside["tanh"] and by_erf and not by_tanh:
            self._others[row] = "its GELU is by tanh, the reference's by the error function"
        elif inside["erf"] and by_tanh and not by_erf:
            self._others[row] = "its GELU is by the error function, the reference's by tanh"
        if node is not None:
            own = node.site is not None and not str(node.site).startswith(_WORKBENCH)
            row.shape, row.line = node.shape, str(node.site) if own else ""
        inner = (p.path for p in self.pairs.values() if name and p.name.startswith(f"{name}."))
        if place.path and not all(within(path, place.path) for path in inner):
            self._wiring.narrower.add(row)
        if name is None:
            row.verdict, row.note = "unpaired", "only here"
        elif node is None:
            row.note = "it returns no tensor"
        elif name not in self.reference.results:
            row.note = "the reference has no result for it"
        return row

    def _compare(self, row: ModuleDiff, side: str, node: Node, value: np.ndarray) -> None:
        source = self.reference.module_inputs if side == "input" else self.reference.results
        if row.name is None:
            return
        ours = to_float32(value, node.dtype, node.ne).reshape(node.shape[::-1])
        for theirs in self._candidates(source, row, side, ours):
            fitting = self._fitting(theirs, row, side, node)
            if isinstance(fitting, str):
                row.note = row.note or (fitting if side == "result" else f"its input: {fitting}")
                continue
            if self._in_tower and "[" in row.path:  # what is not in a layer has no other order
                fitting = self._orders.turned(ours, fitting, max(EXACT, row.bound))
            error, best = errors(ours, fitting), getattr(row, side)
            # The nearest of several tensors that the reference's module returns is meant.
            if best is None or error.nmse < best.nmse:
                setattr(row, side, error)
                if side == "input" and not self._in_tower:
                    row.of_text = self._text_error(ours, fitting)
        if (
            side == "input"
            and row.input is not None
            and row.path in self.pairs
            and row.input.nmse > row.bound
        ):
            row.reads = self._reading(ours, row)

    def _text_error(self, ours: np.ndarray, theirs: np.ndarray) -> float | None:
        """See `ModuleDiff.of_text`."""
        text = self.of_text
        if text is None or ours.ndim != 2 or len(ours) != len(text):
            return None
        return errors(ours[text], theirs[text]).nmse

    def _reading(self, ours: np.ndarray, row: ModuleDiff) -> str:
        """The sibling of its kind whose counterpart has the input that this one has; "" if there is
        none."""
        mine = self.pairs[row.path]
        around = row.path.rpartition(".")[0]
        if row.path.endswith("]"):  # layers in another order are no names swapped
            return ""
        for pair in self.pairs.values():
            theirs = self.reference.module_inputs.get(pair.name)
            alike = pair.module is mine.module and pair.path.rpartition(".")[0] == around
            if not alike or pair.name == row.name or theirs is None or theirs.size != ours.size:
                continue
            fitting = laid_out(theirs, ours.shape)
            if not isinstance(fitting, str) and errors(ours, fitting).nmse <= row.bound:
                return pair.name
        return ""

    def _candidates(
        self, source: dict[str, np.ndarray], row: ModuleDiff, side: str, ours: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Tensors of the reference that may be meant."""
        name = row.name or ""
        for key in (name, *(f"{name}#{i}" for i in range(1, _MOST_RESULTS))):
            if key not in source:
                break
            yield source[key]
        if side == "result" and row in self._wiring.alone and name in source:
            if self._in_tower and ours.ndim == 2 and source[name].size > ours.size:
                # It reads a table, such as that of distances, of which the reference has more.
                rows = source[name].reshape(-1, source[name].shape[-1])
                if rows.shape[1] == ours.shape[1] and len(rows) <= _MOST:
                    yield rows[_matched(ours, rows)]
            module_input = self.reference.module_inputs.get(name)
            if module_input is not None and module_input.shape == source[name].shape:
                yield (
                    source[name] - module_input
                )  # it adds its result to an input that ours is not given

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
        shape = node.shape[::-1]
        if self.token is None:
            return laid_out(_first_rows(theirs, shape) if self._in_tower else theirs, shape)
        n = len(self.reference.ids)
        rows = laid_out(theirs, (n, *shape[shape[0] == 1 :]))
        return rows if isinstance(rows, str) else rows[self.token : self.token + 1].reshape(shape)

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
        self.judged()
        whole = next((row for row in self.rows if not row.path), None)
        alone = not any(row.wrong for row in self.rows)
        if whole is not None and (whole.result is None or (alone and whole.verdict != "equal")):
            whole.verdict = "diverges"  # even if all else agrees, or passes on what it is given
        return self.rows

    def judged(self) -> list[ModuleDiff]:
        """The rows so far, judged."""
        for i, row in enumerate(self.rows):
            judge(row, self.rows[:i], self._wiring)
        if self.token is None:
            self._judge_functions()
            self._judge_routers()
        blame_author(self.rows, self._wiring, self._places)
        blame_left_out(self.rows, self._wiring)
        return self.rows

    def _judge_functions(self) -> None:
        """Blames the first module with another function, unless an error was made before it: how
        much the two forms of GELU differ depends on the numbers."""
        for row in self.rows:
            if row in self._others:
                row.verdict, row.note = "diverges", self._others[row]
            if row.wrong:
                return

    def _judge_routers(self) -> None:
        """Blames the first module that chooses other experts than the reference, unless an error
        was made before it."""
        whole = self._places[""]
        rows = {s: self._places.get(s.rstrip("'"), whole) for s in self.routing.modules}
        rounding = {
            scope: max(EXACT, row.bound) + GROWTH * (row.input.nmse if row.input else 0.0)
            for scope, row in rows.items()
        }
        for scope, text in self.routing.misled(rounding).items():
            row = rows[scope]
            if not any(r.wrong for r in self.rows[: self.rows.index(row)]):
                row.verdict, row.note = "diverges", text
            return

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


def _first_rows(theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The reference's rows without those that only it has, behind ours: an encoder may leave out
    what silence at the end of a sound would become."""
    rows, width = shape if len(shape) == 2 else (0, 0)
    if theirs.ndim > 1 and theirs.shape[-1] == width and theirs.size == theirs.shape[-2] * width:
        return theirs.reshape(-1, width)[:rows]
    return theirs


def _gelus(recording: Recording) -> list[tuple[str, str]]:
    """The function of each GELU, and the module that computes it."""
    ops = ((n.op.name, n) for n in recording.graph.schedule if n.op is not None)
    return [(_GELUS[name], module_of(node)) for name, node in ops if name in _GELUS]
