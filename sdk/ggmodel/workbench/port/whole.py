"""The whole of a recorded model: from ids to the first layer, and from the last one to logits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .algebra import (
    SINES,
    SINGLE,
    Norm,
    Sines,
    activated,
    combination,
    equal,
    norm_of,
    position_rows,
)
from .attention import Missing
from .blocks import Layer, layer_of
from .recording import Array, Call, Recording

_CAPS = (5.0, 10.0, 15.0, 20.0, 30.0, 50.0)


@dataclass(frozen=True)
class Step:
    """A module on the way, by its path: a norm, or else a linear map; or an activation of that
    module's results, by its name."""

    path: str
    norm: Norm | None = None
    activation: str = ""


@dataclass
class Whole:
    """A model.

    Attributes:
        path: of the list of layers. calls: leaves outside of layers.
        width: of what enters the first layer.
        embed: the embedding of tokens, and `scale`, its factor.
        positions: that of positions, and `first`, the row of the first position; "" for none.
        types: that of types of tokens, of which the first counts; "" for none.
        sines: positions that are computed.
        inner: the norm of embeddings of tokens alone; None for none.
        before: modules between these and the first layer. behind: those before the head.
        factor, cap: of logits.
    """

    layers: list[Layer]
    path: str
    calls: dict[str, Call]
    width: int
    embed: str = ""
    scale: float = 1.0
    positions: str = ""
    first: int = 0
    types: str = ""
    sines: Sines | None = None
    inner: Step | None = None
    before: list[Step] = field(default_factory=list)
    behind: list[Step] = field(default_factory=list)
    head: str = ""
    factor: float = 1.0
    cap: float = 0.0

    @property
    def leaves(self) -> set[str]:
        """The paths of all leaves."""
        inner = {f"{layer.path}.{name}" for layer in self.layers for name in layer.calls}
        return inner | self.calls.keys()


def whole_of(record: Recording, lists: Mapping[str, int]) -> Whole:
    """The model that a recording shows.

    Args:
        lists: paths of lists of modules, and their lengths.

    Raises:
        Missing: a part is none of those known.
    """
    held = {p: len(record.within(f"{p}.0")) for p in lists if f"{p}.0" in record.modules}
    if not held:
        raise Missing("the model has no list of layers that are called one after the other")
    path = max(held, key=lambda p: (held[p], -len(p)))
    layers = [layer_of(record, f"{path}.{i}") for i in range(lists[path])]
    for a, b in itertools.pairwise(layers):
        if not equal(record.modules[b.path][0], record.modules[a.path][1]):
            raise Missing(f"{b.path}: it gets something else than the result of {a.path}")
    calls = {c.path: c for c in record.leaves if not c.path.startswith(f"{path}.")}
    first, last = record.modules[layers[0].path][0], record.modules[layers[-1].path][1]
    assert first is not None and last is not None
    whole = Whole(layers, path, calls, first.shape[-1])
    _entry(whole, first, record.ids)
    _exit(whole, last, record.logits)
    return whole


def _entry(whole: Whole, x: Array, ids: Array) -> None:
    calls = whole.calls
    tables = {n: c for n, c in calls.items() if c.x.ndim == 1 and c.y.ndim == 2}
    modules = {n: c for n, c in calls.items() if n not in tables and c.x.dtype.kind == "f"}
    while behind := next((n for n, c in modules.items() if equal(c.y, x)), ""):
        call = calls[behind]
        whole.before.insert(0, Step(behind, norm_of(call.x, call.y, call.weights)))
        x = call.x
    where = whole.layers[0].path
    sources = {n: c.y for n, c in {**tables, **modules}.items()}
    factors = _sum(whole, x, sources)
    for name in [n for n in factors if n in modules and factors[n] == 1]:
        whole.inner = Step(name, norm_of(calls[name].x, calls[name].y, calls[name].weights))
        factors |= _sum(whole, calls[name].x, {n: c.y for n, c in tables.items()})
        del factors[name]
    for name, factor in factors.items():
        table, y = next(iter(calls[name].weights.values())), calls[name].y
        row = position_rows(y, table) if factor == 1 else None
        if row is not None:
            whole.positions, whole.first = name, row
        elif factor == 1 and equal(np.broadcast_to(table[0], y.shape), y):
            whole.types = name
        elif len(table) > ids.max() and equal(_ratio(y, table[ids]) * table[ids], y):
            whole.embed, whole.scale = name, factor * _ratio(y, table[ids])
        else:
            raise Missing(f"{name}: an embedding that is none of tokens, positions or types")
    if not whole.embed:
        raise Missing(f"{where}: what enters it has no embedding of tokens")
    whole.scale = float(f"{whole.scale:.6g}" if whole.sines else f"{whole.scale:.9g}")


def _sum(whole: Whole, x: Array, tables: Mapping[str, Array]) -> dict[str, float]:
    """The factors of embeddings in what enters the layers; computed positions become `sines`."""
    factors = combination(x, tables)
    if factors is not None:
        return factors
    for sines in SINES:
        rows = sines.rows(*x.shape)
        factors = combination(x, {**tables, "": rows}, SINGLE)
        if factors is not None and abs(factors.get("", 0) - 1) < SINGLE:
            whole.sines = sines
            return {n: factor for n, factor in factors.items() if n}
    raise Missing(f"{whole.layers[0].path}: what enters it is no sum of embeddings")


def _ratio(y: Array, rows: Array) -> float:
    return float((y * rows).sum() / (rows * rows).sum())


def _exit(whole: Whole, x: Array, logits: Array) -> None:
    for name, call in reversed([*whole.calls.items()]):
        y = call.y
        if y.shape != logits.shape:
            continue
        factor = _ratio(logits, y)
        caps = [c for c in _CAPS if equal(c * np.tanh(y / c), logits)]
        if equal(factor * y, logits) or caps:
            whole.head, whole.cap = name, next(iter(caps), 0.0)
            whole.factor = 1.0 if caps else float(f"{factor:.9g}")
            break
    if not whole.head:
        raise Missing("logits are no result of a module")
    head = whole.calls[whole.head]
    wanted = head.x
    others = {n: c for n, c in whole.calls.items() if n not in (whole.head, whole.embed)}
    if len(head.weights) == 1 and not whole.cap:
        made = [y for y in (x, *(c.y for c in others.values())) if y.shape == wanted.shape]
        ratio = next((r for y in made if equal((r := _ratio(wanted, y)) * y, wanted)), 1.0)
        whole.factor, wanted = float(f"{whole.factor * ratio:.9g}"), wanted / ratio
    while not equal(wanted, x):
        step = _made(wanted, others)
        if step is None:
            raise Missing(f"{whole.head}: its input is not made of the last layer's result")
        whole.behind.insert(0, step)
        call = others[step.path]
        wanted = call.y if step.activation else call.x


def _made(wanted: Array, calls: Mapping[str, Call]) -> Step | None:
    for name, call in calls.items():
        if equal(call.y, wanted):
            return Step(name, norm_of(call.x, call.y, call.weights))
        if activation := activated(wanted, call.y):
            return Step(name, activation=activation)
    return None


def lists_of(net: Any) -> dict[str, int]:
    """Paths of the lists of modules of a torch model, and their lengths."""
    return {
        path: len(module)
        for path, module in net.named_modules()
        if type(module).__name__ == "ModuleList" and len(module)
    }


def rename(record: Recording, saved: Mapping[str, Array]) -> None:
    """Gives leaves the names that their tensors have in a checkpoint, where it has others.

    Args:
        saved: name → tensor of the checkpoint.
    """
    names = {x.tobytes(): n for n, x in saved.items()}
    taken = {call.path for call in record.leaves}
    kept = {n: x for n, x in record.small.items() if n in saved}
    for name, x in record.small.items():
        if name not in saved and (stored := names.get(x.astype(np.float32).tobytes())):
            kept.setdefault(stored, x)
    record.small = kept
    for call in record.leaves:
        for key, weight in call.weights.items():
            stored = names.get(weight.astype(np.float32).tobytes(), "").rpartition(".")[0]
            if f"{call.path}.{key}" not in saved and stored and stored not in taken:
                call.path = stored
                break
