"""Latent attention of a recorded layer: keys and values of all heads are made of one vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .algebra import Norm, Rotation, equal, places, rotation
from .attention import Attention, Missing, Projection, mask_of, scores_of, seen_of
from .recording import Array, Call, Scores

EPS = 1e-6  # of the norms in nn.LatentAttention
_NAMES = {
    "out": "o_proj",
    "kv_b": "kv_b_proj",
    "kv_norm": "kv_a_layernorm",
    "kv_a": "kv_a_proj_with_mqa",
}
_QUERIES = ("q_proj",)
_LATENT_QUERIES = ("q_b_proj", "q_a_layernorm", "q_a_proj")


@dataclass
class Latent(Attention):
    """Attention as `nn.LatentAttention` computes it. parts: all its leaves. eps: of its norms."""

    parts: tuple[str, ...] = ()
    eps: float = EPS

    @property
    def leaves(self) -> set[str]:
        """All its leaves."""
        return {*self.parts}


def latent_of(s: Scores, calls: Mapping[str, Call], norms: Mapping[str, Norm]) -> Latent | None:
    """The latent attention that computed these scores; None if it is none.

    Raises:
        Missing: it is one that `nn.LatentAttention` does not compute.
    """
    heads, n, width = s.keys.shape
    rows = {name: c.y.reshape(n, -1) for name, c in calls.items() if c.at < s.at}
    kv_b = next((m for m, x in rows.items() if places(s.values[:, 0], x[0]) is not None), "")
    kv_norm = next((m for m in norms if kv_b and equal(calls[m].y, calls[kv_b].x)), "")
    if not kv_norm or rows[kv_b].shape[1] % heads:
        return None
    each, rank = rows[kv_b].reshape(n, heads, -1).swapaxes(0, 1), calls[kv_norm].x.shape[-1]
    plain = each.shape[-1] - s.values.shape[-1]
    if not equal(s.keys[..., :plain], each[..., :plain]) or not 0 < plain < width:
        return None
    kv_a = next(
        (m for m, x in rows.items() if m != kv_norm and equal(x[:, :rank], calls[kv_norm].x)), ""
    )
    if not kv_a:
        return None
    turned = _turned(rows[kv_a][:, rank:], s.keys[0, :, plain:])
    queries = _queries(s.queries[..., :plain], rows, calls, norms)
    merged = s.out.swapaxes(0, 1).reshape(n, -1)
    out = next((m for m, c in calls.items() if c.at > s.at and equal(c.x, merged)), "")
    where = s.path
    if turned is None or not queries or not out:
        raise Missing(f"{where}: latent attention of another kind")
    parts = (*queries, kv_a, kv_norm, kv_b, out)
    _check(where, queries, {"out": out, "kv_b": kv_b, "kv_norm": kv_norm, "kv_a": kv_a})
    each_eps = {norms[m].eps for m in (kv_norm, *queries) if m in norms}
    if len(each_eps) > 1:
        raise Missing(f"{where}: latents normalised with different epsilons")
    seen = seen_of(s)
    window, causal = mask_of(seen, where)
    scale, cap, _ = scores_of(s, seen, where)
    return Latent(
        *(Projection(queries[-1]), Projection(kv_a), Projection(kv_b), out, ""),
        *(heads, 1, width, s.values.shape[-1], float(f"{scale:.9g}"), cap),
        *(turned, window, causal),
        parts=parts,
        eps=each_eps.pop(),
    )


def _turned(before: Array, after: Array) -> Rotation | None:
    """The rotation of the part of keys that all heads share, [n, d]. Some models put both numbers
    of a pair apart, in queries and keys alike, which no score shows."""
    order = places(after[:1], before[0])
    if order is None:
        return None
    turned = rotation(before[:, order[0]][None], after[None])
    apart = [*range(0, before.shape[1], 2), *range(1, before.shape[1], 2)]
    if turned is None or turned.backwards:
        return None
    if turned.neighbours or order[0].tolist() != apart:
        return turned
    return replace(turned, neighbours=True)


def _queries(
    plain: Array, rows: Mapping[str, Array], calls: Mapping[str, Call], norms: Mapping[str, Norm]
) -> tuple[str, ...]:
    """The leaves that give queries: one, or the last one, a norm and the first one."""
    last = next((m for m, x in rows.items() if places(plain[:, 0], x[0]) is not None), "")
    if not last:
        return ()
    norm = next((m for m in norms if equal(calls[m].y, calls[last].x)), "")
    first = next((m for m, x in rows.items() if norm and equal(x, calls[norm].x)), "")
    return (last, norm, first) if first else (last,)


def _check(where: str, queries: tuple[str, ...], named: Mapping[str, str]) -> None:
    usual = _LATENT_QUERIES if len(queries) > 1 else _QUERIES
    got = [name.rpartition(".")[2] for name in queries]
    others = {field: name.rpartition(".")[2] for field, name in named.items()}
    if got != [*usual] or others != _NAMES:
        raise Missing(f"{where}: latent attention whose modules have other names")
