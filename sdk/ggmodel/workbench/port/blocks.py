"""The blocks of a recorded layer: attention, feed-forward, norms, and how they are wired."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from .algebra import Gated, Norm, combination, equal, gated, norm_of
from .attention import Attention, Missing, attention_of
from .experts import Experts, experts_of
from .latent import latent_of
from .recording import Array, Call, Recording

Wiring = list[tuple[str, dict[str, float]]]


@dataclass
class FeedForward:
    """A layer's feed-forward part; see `Gated` for the names. norm: the leaf before `down`."""

    gated: Gated
    down: str
    norm: str = ""

    @property
    def leaves(self) -> set[str]:
        """All its leaves."""
        return {self.gated.up, self.gated.gate, self.down, self.norm} - {""}


@dataclass
class Layer:
    """A layer.

    Attributes:
        calls: its leaves by their paths within the layer.
        norms: leaves that are norms.
        second_ffn: a second feed-forward part; None for none.
        wiring: in execution order each part ("attn", "ffn", "second_ffn", or a norm's path) with
            the factors of its input: of parts before it, and of "x", what enters the layer. The
            last entry, "", is the layer's result.
    """

    path: str
    calls: dict[str, Call]
    attention: Attention
    feed: FeedForward | Experts
    norms: dict[str, Norm]
    second_ffn: FeedForward | None = None
    wiring: Wiring = field(default_factory=list)


def layer_of(record: Recording, path: str) -> Layer:
    """The blocks of a layer.

    Raises:
        Missing: one of them is none of the known ones; says which module has it.
    """
    calls = {c.path.removeprefix(f"{path}."): c for c in record.within(path)}
    norms = {name: norm for name, c in calls.items() if (norm := norm_of(c.x, c.y, c.weights))}
    scores = [s for s in record.scores if s.path.startswith(f"{path}.")]
    if len(scores) != 1:
        inside = ", ".join(sorted({c.kind for c in calls.values()}))
        raise Missing(f"{path}: {len(scores)} softmaxes over tokens, not one; it has {inside}")
    small = {n.removeprefix(f"{path}."): x for n, x in record.small.items() if n.startswith(path)}
    latent = latent_of(scores[0], calls, norms)
    attention = latent or attention_of(scores[0], calls, norms, small)
    feed = experts_of(record, path, calls) or _feed_forward(calls, norms, attention, path)
    x, y = record.modules[path]
    layer = Layer(path, calls, attention, feed, norms)
    if isinstance(feed, Experts):
        norms.pop(feed.behind, None)
    loose = calls.keys() - attention.leaves - feed.leaves - norms.keys()
    if loose:
        rest = {n: c for n, c in calls.items() if n in loose or n in norms}
        with suppress(Missing):
            layer.second_ffn = _feed_forward(rest, norms, attention, path)
            loose -= layer.second_ffn.leaves
    if loose:
        first = min(loose, key=lambda n: calls[n].at)
        raise Missing(f"{path}.{first} ({calls[first].kind}): no known block has this module")
    if x is None or y is None:
        raise Missing(f"{path}: what enters and leaves this layer")
    loose = [n for n, w in small.items() if w.shape == x.shape[-1:] and _module(n) not in calls]
    for name in ("", *loose):
        with suppress(_Unwired):
            layer.wiring = _wiring(layer, record, x, y, small.get(name))
            attention.bias = name
            return layer
    layer.wiring = _wiring(layer, record, x, y)  # raises
    return layer


def _module(name: str) -> str:
    return name.rpartition(".")[0]


class _Unwired(Missing):
    """An input is no sum."""


def _feed_forward(
    calls: Mapping[str, Call], norms: Mapping[str, Norm], attention: Attention, path: str
) -> FeedForward:
    linear = {
        name: c for name, c in calls.items() if name not in norms and name not in attention.leaves
    }
    for name, call in [*linear.items(), *((n, calls[n]) for n in norms)]:
        before = {m: c.y for m, c in linear.items() if c.at < call.at}
        found = gated(call.x, before) if before and call.x.ndim == 2 else None
        if found is None:
            continue
        if name in linear:
            return FeedForward(found, name)
        behind = [m for m, c in linear.items() if equal(c.x, call.y)]
        if behind:
            return FeedForward(found, behind[0], name)
    names = ", ".join(f"{name} ({c.kind})" for name, c in linear.items()) or "no modules"
    raise Missing(f"{path}: a feed-forward part of {names}")


def _wiring(
    layer: Layer, record: Recording, x: Array, y: Array, bias: Array | None = None
) -> Wiring:
    """The input of each part as a sum of what was computed before; a bias is added to the result
    of attention."""
    a, f, calls = layer.attention, layer.feed, layer.calls
    first, last = calls[a.q.source], calls[a.out]
    attended = last.y if bias is None else last.y + bias
    parts = [(first.at, last.at, "attn", first.x, attended)]
    if isinstance(f, Experts):
        given, made = record.modules[f"{layer.path}.{f.path}"]
        if given is None or made is None:
            raise Missing(f"{layer.path}.{f.path}: its input and result")
        ends = [calls[name].at for name in f.leaves]
        parts.append((min(ends), max(ends), "ffn", given, made))
    else:
        first, last = calls[f.gated.up], calls[f.down]
        parts.append((first.at, last.at, "ffn", first.x, last.y))
    inner = a.leaves | f.leaves
    if layer.second_ffn is not None:
        inner |= layer.second_ffn.leaves
        first, last = calls[layer.second_ffn.gated.up], calls[layer.second_ffn.down]
        parts.append((first.at, last.at, "second_ffn", first.x, last.y))
    for name in layer.norms.keys() - inner:
        parts.append((calls[name].at, calls[name].at, name, calls[name].x, calls[name].y))
    parts.sort(key=lambda part: part[:2])
    results = {name: (end, out) for _, end, name, _, out in parts}
    wiring: Wiring = []
    for start, _, name, given, _ in parts:
        known = {"x": x} | {m: out for m, (end, out) in results.items() if end < start}
        factors = combination(given, known)
        if factors is None:
            raise _Unwired(f"{layer.path}: the input of {name} is no sum of results before it")
        wiring.append((name, factors))
    factors = combination(y, {"x": x} | {m: out for m, (_, out) in results.items()})
    if factors is None:
        raise _Unwired(f"{layer.path}: its result is no sum of its parts'")
    return [*wiring, ("", factors)]
