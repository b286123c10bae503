"""The attention of a recorded layer: from the scores and their factors back to the modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...errors import Unsupported
from .algebra import EXACT, Norm, Rotation, equal, places, rotation, slopes
from .recording import Array, Call, Scores

_MASKED = -5e3  # scores below are of tokens that are not seen
_CAPS = (5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
_ALIBI = 8.0


class Missing(Unsupported):
    """A block that is none of those known."""


@dataclass(frozen=True)
class Projection:
    """Queries, keys or values.

    Attributes:
        source: the leaf whose results they are, before their norm, and `norm`, its leaf, or "".
        order: of the source's results, the index of each element [heads, d].
    """

    source: str
    norm: str = ""
    order: tuple[tuple[int, ...], ...] = ()

    @property
    def plain(self) -> bool:
        """Whether they are all results in their order."""
        return [i for row in self.order for i in row] == list(range(sum(map(len, self.order))))


@dataclass
class Attention:
    """A layer's attention. Numbers of heads are those of the tiny model.

    Attributes:
        out: the leaf behind it, and `out_norm` the leaf of a norm between; "" for none.
        window: how many positions each sees; None for all before it.
        max_bias: of ALiBi; 0 for none.
        sinks: the parameter with one more score for each head; "" for none.
        bias: one that is added to the result, and is none of `out`'s; "" for none.
    """

    q: Projection
    k: Projection
    v: Projection
    out: str
    out_norm: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    softcap: float
    rope: Rotation
    window: int | None
    causal: bool
    max_bias: float = 0.0
    sinks: str = ""
    bias: str = ""

    @property
    def leaves(self) -> set[str]:
        """All its leaves."""
        each = (self.q, self.k, self.v)
        names = {n for p in each for n in (p.source, p.norm)}
        return (names | {self.out, self.out_norm}) - {""}


def attention_of(
    s: Scores,
    calls: Mapping[str, Call],
    norms: Mapping[str, Norm],
    small: Mapping[str, Array],
) -> Attention:
    """The attention that computed these scores.

    Args:
        calls: the layer's leaves by their names. norms: those that are norms.
        small: its parameters of one dim.

    Raises:
        Missing: it is none that `nn.Attention` computes; says why.
    """
    where, before = s.path, {name: c for name, c in calls.items() if c.at < s.at}
    heads, _, head_dim = s.queries.shape
    keys, values = (_distinct(x, heads, where) for x in (s.keys, s.values))
    if len(keys) != len(values):
        raise Missing(f"{where}: {len(keys)} heads of keys, {len(values)} of values")
    q, turned_q, factor_q = _projected(s.queries, before, norms, f"{where}: queries")
    k, turned_k, factor_k = _projected(keys, before, norms, f"{where}: keys")
    v, turned_v, factor_v = _projected(values, before, norms, f"{where}: values")
    if not turned_q.alike(turned_k):
        raise Missing(f"{where}: queries and keys are not rotated alike")
    if turned_v.dims or abs(factor_v - 1) > EXACT:
        raise Missing(f"{where}: values are rotated or scaled")
    seen = seen_of(s)
    window, causal = mask_of(seen, where)
    scale, softcap, max_bias = scores_of(s, seen, where)
    merged = s.out.transpose(1, 0, 2).reshape(s.out.shape[1], -1)
    out, out_norm = _behind(merged, calls, norms, s.at, f"{where}: the result of attention")
    return Attention(
        *(q, k, v, out, out_norm, heads, len(keys), head_dim, values.shape[-1]),
        scale=float(f"{scale * factor_q * factor_k:.9g}"),
        softcap=softcap,
        rope=turned_q,
        window=window,
        causal=causal,
        max_bias=max_bias,
        sinks=_sinks(s, scale, small, where),
    )


def seen_of(s: Scores) -> Array:
    """Which tokens each one sees, [n, n]."""
    return np.all(s.scores > _MASKED, axis=0) & np.ones(s.scores.shape[1:], bool)


def _distinct(x: Array, heads: int, where: str) -> Array:
    """The heads of keys or values, each once, of those repeated for groups of queries."""
    first = [i for i in range(len(x)) if i == 0 or not equal(x[i], x[i - 1])]
    if len(x) not in (1, heads) or first != [*range(0, len(x), len(x) // len(first))]:
        raise Missing(f"{where}: queries of {heads} heads for {len(first)} of keys")
    return x[first]


def _projected(
    heads: Array, calls: Mapping[str, Call], norms: Mapping[str, Norm], where: str
) -> tuple[Projection, Rotation, float]:
    """The leaves that give heads [heads, n, d], their rotation, and a factor on them. The first
    token is rotated by nothing, so there each number is found in the leaf's result."""
    for name, call in reversed([*calls.items()]):
        rows = call.y.reshape(len(call.y), -1)
        for factor in _factors(heads, rows):
            order = places(heads[:, 0], rows[0], factor)
            if order is None:
                continue
            turned = rotation(factor * rows[:, order].swapaxes(0, 1), heads)
            if turned is None:
                continue
            if name not in norms:
                return Projection(name, "", _listed(order)), turned, factor
            found = _before_norm(call, norms[name], calls, norms)
            if found is None:
                continue
            source, inner, earlier = found
            own = order if order.max() < inner.size else order % inner.size
            order = inner[own]
            rotated = turned if turned.dims else earlier
            return Projection(source, name, _listed(order)), rotated, factor
    raise Missing(f"{where} are no results of a module that a rotation explains")


def _listed(order: Array) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, row)) for row in order)


def _factors(heads: Array, rows: Array) -> list[float]:
    factors = [1.0, heads.shape[-1] ** -0.5]
    if rows.shape[1] == heads[:, 0].size:
        sizes = np.linalg.norm(heads[:, 0]), np.linalg.norm(rows[0])
        factors.append(float(sizes[0] / max(sizes[1], 1e-300)))
    return factors


def _before_norm(
    call: Call, norm: Norm, calls: Mapping[str, Call], norms: Mapping[str, Norm]
) -> tuple[str, Array, Rotation] | None:
    """The leaf that a norm of queries or keys reads, the order of its results in the norm's input,
    and a rotation between, which an RMS norm without weights lets through."""
    x = call.x.reshape(len(call.x), -1)
    none = Rotation(0, False, ())
    for name, source in calls.items():
        if name in norms or source.at > call.at:
            continue
        rows = source.y.reshape(len(source.y), -1)
        order = places(x[:1], rows[0])
        if order is None:
            continue
        if equal(rows[:, order[0]], x):
            return name, order[0], none
        if norm.kind == "rms" and not norm.weights and call.x.ndim == 3:
            each = order[0].reshape(call.x.shape[1:])
            turned = rotation(rows[:, each].swapaxes(0, 1), call.x.swapaxes(0, 1))
            if turned is not None:
                return name, order[0], turned
    return None


def mask_of(seen: Array, where: str) -> tuple[int | None, bool]:
    """The window of a mask [n, n] of what each row sees, and whether later tokens are unseen."""
    n = len(seen)
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    if seen.all():
        return None, False
    causal = distance >= 0
    if np.array_equal(seen, causal):
        return None, True
    window = int(distance[seen].max()) + 1
    if np.array_equal(seen, causal & (distance < window)):
        return window, True
    raise Missing(f"{where}: a mask that is neither causal nor a window")


def scores_of(s: Scores, seen: Array, where: str) -> tuple[float, float, float]:
    """The scale and the cap of scores, and the greatest exponent of ALiBi's slopes."""
    keys = np.broadcast_to(s.keys, (len(s.queries), *s.keys.shape[1:]))
    products = s.queries @ keys.swapaxes(1, 2)
    x, y = products[:, seen], s.scores[:, seen]

    def slope(z: Array) -> float:
        return float((x * z).sum() / (x * x).sum())

    if s.sunk:  # each head's scores lack a number
        x, y = (z - z[:, :1] for z in (x, y))
    if equal(slope(y) * x, y):
        return slope(y), 0.0, 0.0
    for cap in (c for c in _CAPS if np.abs(y).max() < c):
        scale = slope(cap * np.arctanh(y / cap))
        if equal(cap * np.tanh(scale * x / cap), y):
            return scale, cap, 0.0
    for scale in (s.queries.shape[-1] ** -0.5, 1.0):
        lost = slopes(s.scores - scale * products, seen)
        usual = 2.0 ** -(_ALIBI / len(s.scores) * np.arange(1, len(s.scores) + 1))
        if lost is not None and equal(lost, usual):
            return scale, 0.0, _ALIBI
    raise Missing(f"{where}: scores that are no scaled product of queries and keys")


def _sinks(s: Scores, scale: float, small: Mapping[str, Array], where: str) -> str:
    """The parameter with one more score for each head; "" for none."""
    if not s.sunk:
        return ""
    own = scale * (s.queries[:, 0] * s.keys[:, 0]).sum(-1) - s.scores[:, 0, 0]
    name = next((n for n, x in small.items() if equal(x, own)), "")
    if not name:
        raise Missing(f"{where}: one more score for each head, which no parameter has")
    return name


def _behind(
    result: Array, calls: Mapping[str, Call], norms: Mapping[str, Norm], at: int, where: str
) -> tuple[str, str]:
    """The linear map of a result, and a norm between, or ""."""
    for name, call in calls.items():
        if call.at > at and equal(call.x.reshape(len(call.x), -1), result):
            if name not in norms:
                return name, ""
            behind = [m for m, c in calls.items() if c.at > call.at and equal(c.x, call.y)]
            if behind:
                return behind[0], name
    raise Missing(f"{where} goes into no module as it is")
