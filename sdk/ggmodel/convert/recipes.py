"""The type of each tensor of a quantised file.

The mixtures are those of llama.cpp's llama-quantize, with the same outcome for every tensor
(tests/convert/quantized.json holds its choices). Errors hurt most in attention's values, in the
maps down from the feed-forward width and in the output, so these get more bits.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..gguf_file import DType
from ..gguf_file.metadata import check_kind
from ..model.names import of_vision


@dataclass(frozen=True)
class Shape:
    """The properties of a model that a mixture depends on.

    Attributes:
        group: query heads that share one of keys and values.
        large_llama: 80 layers with grouped heads, which affords more bits for values.
    """

    layers: int
    group: int
    experts: int
    large_llama: bool

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Shape:
        """Reads a file's metadata; missing keys count as 0.

        Raises:
            ConfigError: a value is no number.
        """
        name = metadata.get("general.architecture")

        def number(key: str, default: int = 0) -> int:
            key = f"{name}.{key}"
            each = check_kind(key, metadata.get(key, default), list, "the metadata")
            return check_kind(key, each[0] if each else default, int, "the metadata")

        layers, heads = number("block_count"), number("attention.head_count")
        kv_heads = number("attention.head_count_kv", heads)
        large = layers == 80 and (name == "qwen2" or (name == "llama" and heads != kv_heads))
        group = heads // kv_heads if kv_heads else 0
        return cls(layers, group, number("expert_count"), large)


# (index of a tensor among those of its kind, their number, model) → type, None for the recipe's.
Rule = Callable[[int, int, Shape], "DType | None"]


def _always(dtype: DType) -> Rule:
    return lambda i, n, model: dtype


def _first(count: int, dtype: DType, rest: DType | None = None) -> Rule:
    return lambda i, n, model: dtype if i < count else rest


def _begin(share: int, dtype: DType, rest: DType | None = None) -> Rule:
    """The first n / share."""
    return lambda i, n, model: dtype if i < n // share else rest


def _spread(dtype: DType) -> Rule:
    """The first and the last eighth, and every third between them."""

    def rule(i: int, n: int, model: Shape) -> DType | None:
        eighth = n // 8
        chosen = i < eighth or i >= 7 * n // 8 or (i - eighth) % 3 == 2
        return dtype if chosen else None

    return rule


def _grouped(dtype: DType, rest: DType | None = None) -> Rule:
    """Where four or more query heads share values."""
    return lambda i, n, model: dtype if model.group >= 4 else rest


@dataclass(frozen=True)
class Recipe:
    """A file type.

    Attributes:
        name: for users.
        dtype: the type of tensors that no rule gives another.
        file_type: its number in `general.file_type`.
        values, down, out: rules for attention's values, the maps down from the feed-forward width,
            and attention's output.
        eight: with eight experts attention's output is Q5_K.
    """

    name: str
    dtype: DType
    file_type: int
    values: Rule | None = None
    down: Rule | None = None
    out: Rule | None = None
    eight: bool = False


_Q3, _Q4, _Q5, _Q6 = DType.Q3_K, DType.Q4_K, DType.Q5_K, DType.Q6_K
_MORE: dict[str, Any] = {"values": _spread(_Q6), "down": _spread(_Q6)}
_NL: dict[str, Any] = {"values": _grouped(_Q5), "down": _begin(8, _Q5), "eight": True}
_Q2: dict[str, Any] = {"values": _grouped(_Q4, _Q3), "down": _always(_Q3), "eight": True}
_Q3_M: dict[str, Any] = {"values": _first(2, _Q5, _Q4), "down": _begin(16, _Q5, _Q4), "eight": True}
_Q3_L: dict[str, Any] = {"values": _always(_Q5), "down": _always(_Q5), "out": _always(_Q5)}
_Q4_S: dict[str, Any] = {"values": _first(4, _Q5), "down": _begin(8, _Q5), "eight": True}

RECIPES: dict[str, Recipe] = {
    recipe.name.lower(): recipe
    for recipe in (
        Recipe("f32", DType.F32, 0),
        Recipe("f16", DType.F16, 1),
        Recipe("bf16", DType.BF16, 32),
        Recipe("q8_0", DType.Q8_0, 7),
        Recipe("q6_K", _Q6, 18),
        Recipe("q5_K_M", _Q5, 17, **_MORE),
        Recipe("q5_K_S", _Q5, 16),
        Recipe("q5_1", DType.Q5_1, 9),
        Recipe("q5_0", DType.Q5_0, 8),
        Recipe("q4_K_M", _Q4, 15, **_MORE, eight=True),
        Recipe("q4_K_S", _Q4, 14, **_Q4_S),
        Recipe("q4_1", DType.Q4_1, 3),
        Recipe("q4_0", DType.Q4_0, 2),
        Recipe("iq4_nl", DType.IQ4_NL, 25, **_NL),
        Recipe("iq4_xs", DType.IQ4_XS, 30, **_NL),
        Recipe("mxfp4", DType.MXFP4, 38),
        Recipe("q3_K_L", _Q3, 13, **_Q3_L),
        Recipe("q3_K_M", _Q3, 12, **_Q3_M, out=_always(_Q4)),
        Recipe("q3_K_S", _Q3, 11, eight=True),
        Recipe("q2_K", DType.Q2_K, 10, **_Q2, out=_always(_Q3)),
    )
}
_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "mxfp4_moe": "mxfp4"}


def recipe_of(name: str) -> Recipe:
    """The recipe called `name`, in any case.

    Raises:
        ConfigError: there is none; lists all.
    """
    key = name.strip().lower()
    found = RECIPES.get(_ALIASES.get(key, key))
    if found is None:
        near = difflib.get_close_matches(key, RECIPES, 1)
        hint = f"; did you mean {RECIPES[near[0]].name}?" if near else "."
        names = ", ".join(r.name for r in RECIPES.values())
        raise ConfigError(f"no type {name[:40]!r}{hint} Types are {names}")
    return found


@dataclass(frozen=True)
class Candidate:
    """A tensor whose type is to be chosen: its name, shape in ggml's order, and present type."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


@dataclass
class _Counts:
    """Numbers of tensors of a kind seen so far; layers may lack some."""

    values: int = 0
    down: int = 0
    total_values: int = 0
    tied: bool = True
    kinds: dict[str, str] = field(default_factory=dict)


def choose(
    recipe: Recipe, metadata: Mapping[str, Any], tensors: Iterable[Candidate]
) -> dict[str, DType]:
    """Tensor name → type for all tensors of a file, in llama-quantize's order: by layer, then by
    name. Tensors that a recipe does not touch keep their type."""
    model = Shape.of(metadata)
    ordered = sorted(tensors, key=lambda t: (_layer(t.name), t.name.encode()))
    own = metadata.get("general.architecture") != "clip"
    changed = {t.name for t in ordered if _changes(t, own)}
    seen = _Counts(kinds={t.name: _kind(t.name) for t in ordered})
    counted = [k for n, k in seen.kinds.items() if not (own and of_vision(n))]
    seen.total_values = counted.count("values")
    seen.tied = "output" not in counted
    found = {}
    for t in ordered:
        found[t.name] = t.dtype
        if t.name in changed:
            found[t.name] = recipe.dtype
            if recipe.dtype.is_quantized:
                found[t.name] = _fitting(_mixed(recipe, model, t, seen), t.shape[0])
    return found


def _mixed(recipe: Recipe, model: Shape, t: Candidate, seen: _Counts) -> DType:
    """The type of a tensor by its kind, its width not yet considered."""
    kind, own = seen.kinds[t.name], recipe.dtype
    if kind == "output" or (seen.tied and kind == "tokens"):
        fits = t.shape[0] % own.block_size == 0
        return DType.Q6_K if fits and own not in (DType.Q8_0, DType.MXFP4) else DType.Q8_0
    if own is DType.MXFP4:
        return own if len(t.shape) > 2 and t.shape[2] > 1 else DType.Q8_0
    if kind == "values":
        chosen = recipe.values and recipe.values(seen.values, seen.total_values, model)
        seen.values += 1
        dtype = chosen or own
        if model.large_llama and dtype in (DType.Q3_K, DType.Q4_K):
            dtype = DType.Q5_K
        return DType.Q8_0 if model.experts == 8 else dtype
    if kind == "keys" and model.experts == 8:
        return DType.Q8_0
    if kind == "down":
        i = _layer(t.name) if model.experts > 1 else seen.down
        seen.down += 1
        return (recipe.down and recipe.down(i, model.layers, model)) or own
    if kind == "out" and model.experts == 8:
        return DType.Q5_K if recipe.eight else own
    if kind == "out":
        return (recipe.out and recipe.out(0, 0, model)) or own
    return own


# (part of a name, kind of tensor); the first that fits counts.
_KINDS = (
    ("attn_qkv.weight", "values"),
    ("attn_kv_b.weight", "values"),
    ("attn_v.weight", "values"),
    ("attn_k.weight", "keys"),
    ("attn_q.weight", ""),
    ("attn_output.weight", "out"),
    ("ffn_up", ""),
    ("ffn_gate", ""),
    ("ffn_down", "down"),
)


def _kind(name: str) -> str:
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "tokens"
    return next((kind for part, kind in _KINDS if part in name), "")


def _layer(name: str) -> int:
    """The number of the layer, -1 outside of layers."""
    found = re.match(r"blk\.(\d{1,9})\.", name)
    return int(found[1]) if found else -1


# Tensors that keep their type, for they are small or sensitive. Names, and parts of names.
_KEPT = ("position_embd.weight", "token_types.weight")
_KEPT_PARTS = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel"),
    *("per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "attn_rel_b.weight"),
    *("indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight"),
    *(f"time_mix_{n}.weight" for n in "w0 w1 w2 v0 v1 v2 a0 a1 a2 g1 g2".split()),
    *("time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd"),
    *(".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)


def _changes(t: Candidate, own: bool) -> bool:
    """Whether a recipe applies to a tensor. Vision tensors in one file with the text keep their
    type: they are few and sensitive."""
    if own and of_vision(t.name):
        return False
    matrix = any(n > 1 for n in t.shape[1:]) and t.name.endswith("weight")
    return matrix and t.name not in _KEPT and not any(part in t.name for part in _KEPT_PARTS)


# Substitutes for types whose blocks do not fill a row; the last resort is F16.
_NARROWER = {
    DType.IQ4_XS: DType.IQ4_NL,
    DType.Q2_K: DType.Q4_0,
    DType.Q3_K: DType.Q4_0,
    DType.Q4_K: DType.Q5_0,
    DType.Q5_K: DType.Q5_1,
    DType.Q6_K: DType.Q8_0,
}


def _fitting(dtype: DType, width: int) -> DType:
    for candidate in (dtype, _NARROWER.get(dtype, dtype)):
        if width % candidate.block_size == 0:
            return candidate
    return DType.F16


# F32 in every file, beside vectors and norms.
_PRECISE = re.compile(
    r"(position(al)?_emb|^token_types\.|ffn_gate_inp(_shexp)?\.|ssm_conv1d|shortconv\.conv)"
)


def plain_type(name: str, shape: tuple[int, ...], wanted: DType) -> DType:
    """The type of a converted tensor before quantisation.

    Args:
        shape: in ggml's order, as many dims as the checkpoint has.
        wanted: the type of matrices.
    """
    if name == "mm.input_projection.weight":  # llama.cpp reads only this of it
        return DType.F16
    # Kernels of convolutions have four dims.
    matrix = 2 <= len(shape) <= 3 and name.endswith(".weight") and not name.endswith("_norm.weight")
    return wanted if matrix and not _PRECISE.search(name) else DType.F32
