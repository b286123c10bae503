"""Quantisation types: the mixtures that a file can have, and the type of each of its tensors.

The mixtures are those of llama.cpp's llama-quantize. Errors hurt most in attention's values, in the
maps down from the feed-forward width and in the output, so these get more bits. The outcome is
llama-quantize's for every tensor: tests/convert/quantized.json holds its choices.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, Unsupported
from ..gguf_file import DType
from ..gguf_file.values import check_kind
from ..model.module import of_tower


@dataclass(frozen=True)
class Shape:
    """The properties of a model that a mixture depends on.

    Attributes:
        group: query heads that share one of keys and values.
        large_llama: 80 layers with grouped heads, which affords more bits for values.
        weighted: an importance matrix tells which weights matter.
    """

    layers: int
    group: int
    experts: int
    large_llama: bool
    weighted: bool = False

    @classmethod
    def of(cls, metadata: Mapping[str, Any], weighted: bool = False) -> Shape:
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
        return cls(layers, group, number("expert_count"), large, weighted)


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
    return lambda i, n, model: dtype if _is_spread(i, n) else None


def _is_spread(i: int, n: int) -> bool:
    eighth = n // 8
    return i < eighth or i >= 7 * n // 8 or (i - eighth) % 3 == 2


def _middle(dtype: DType) -> Rule:
    """All but the first and the last eighth."""
    return lambda i, n, model: dtype if n // 8 <= i < 7 * n // 8 else None


def _grouped(dtype: DType, rest: DType | None = None) -> Rule:
    """Where four or more query heads share values."""
    return lambda i, n, model: dtype if model.group >= 4 else rest


def _shared(dtype: DType, rest: DType) -> Rule:
    """Where four or more query heads share values, or there are four or more experts."""
    return lambda i, n, model: dtype if max(model.group, model.experts) >= 4 else rest


def _if(weighted: bool, then: Rule, otherwise: Rule | None = None) -> Rule:
    """`then` with an importance matrix, or without one; else `otherwise`."""

    def rule(i: int, n: int, model: Shape) -> DType | None:
        chosen = then if model.weighted is weighted else otherwise
        return chosen(i, n, model) if chosen else None

    return rule


def _begin_or_spread(dtype: DType) -> Rule:
    """The first eighth; with eight experts as `_spread`."""
    return lambda i, n, model: (
        dtype if i < n // 8 or (model.experts == 8 and _is_spread(i, n)) else None
    )


@dataclass(frozen=True)
class Recipe:
    """A file type.

    Attributes:
        name: for users.
        dtype: the type of tensors that no rule gives another.
        file_type: its number in `general.file_type`.
        rules: kind of tensor (see `tensor_types.kind_of`) → its rule.
        output: the type of the output, or of a tied embedding.
        eight: with eight experts attention's output is Q5_K.
        tiny: below three bits a weight: eight experts or a large llama give no tensor more bits,
            but for keys.
        needs_importance: types that take an importance matrix, but for embedding and output.
    """

    name: str
    dtype: DType
    file_type: int
    rules: Mapping[str, Rule] = field(default_factory=dict)
    output: DType = DType.Q6_K
    eight: bool = False
    tiny: bool = False
    needs_importance: frozenset[DType] = frozenset()


_Q2, _Q3, _Q4, _Q5, _Q6 = DType.Q2_K, DType.Q3_K, DType.Q4_K, DType.Q5_K, DType.Q6_K
_I2, _I3 = DType.IQ2_XXS, DType.IQ3_S
# Types whose few values are garbage unless chosen by importance.
WEIGHTED = frozenset(DType[name] for name in "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS".split())


def _tiny(name: str, dtype: DType, number: int, more: DType, out: DType | None = None) -> Recipe:
    """A mixture below three bits: `more` for the tensors that errors hurt most."""
    rules = {"tokens": _always(more), "values": _shared(_Q4, more), "down": _begin(8, more)}
    if out is not None:
        rules["out"] = _always(out)
    return Recipe(name, dtype, number, rules, _Q5, True, True, WEIGHTED)


_MORE = {"values": _spread(_Q6), "down": _spread(_Q6)}
_NL = {"values": _grouped(_Q5), "down": _if(False, _begin(8, _Q5))}
_TERNARY = {"tokens": _always(_Q4)}

RECIPES: dict[str, Recipe] = {
    recipe.name.lower(): recipe
    for recipe in (
        Recipe("f32", DType.F32, 0),
        Recipe("f16", DType.F16, 1),
        Recipe("bf16", DType.BF16, 32),
        Recipe("q8_0", DType.Q8_0, 7),
        Recipe("q6_K", _Q6, 18),
        Recipe("q5_K_M", _Q5, 17, _MORE),
        Recipe("q5_K_S", _Q5, 16),
        Recipe("q5_1", DType.Q5_1, 9),
        Recipe("q5_0", DType.Q5_0, 8, {"down": _if(True, _begin(8, DType.Q5_1))}),
        Recipe("q4_K_M", _Q4, 15, _MORE, eight=True),
        Recipe("q4_K_S", _Q4, 14, {"values": _first(4, _Q5), "down": _begin(8, _Q5)}, eight=True),
        Recipe("q4_1", DType.Q4_1, 3),
        Recipe("q4_0", DType.Q4_0, 2, {"down": _if(True, _begin(8, DType.Q4_1))}),
        Recipe("iq4_nl", DType.IQ4_NL, 25, _NL, eight=True),
        Recipe("iq4_xs", DType.IQ4_XS, 30, _NL, eight=True),
        Recipe("mxfp4", DType.MXFP4, 38),
        Recipe("q3_K_L", _Q3, 13, dict.fromkeys(("values", "down", "out"), _always(_Q5))),
        Recipe(
            *("q3_K_M", _Q3, 12),
            {"values": _first(2, _Q5, _Q4), "down": _begin(16, _Q5, _Q4), "out": _always(_Q4)},
            eight=True,
        ),
        Recipe("q3_K_S", _Q3, 11, eight=True),
        Recipe(
            *("iq3_M", _I3, 27),
            {"values": _always(_Q4), "down": _begin_or_spread(_Q4), "out": _always(_Q4)},
            eight=True,
        ),
        Recipe("iq3_S", _I3, 26, {"values": _grouped(_Q4)}, eight=True),
        Recipe(
            *("iq3_XS", _I3, 22),
            {
                "values": _grouped(_Q4),
                **dict.fromkeys(("keys", "queries"), _always(DType.IQ3_XXS)),
                **dict.fromkeys(("gate", "up"), _middle(DType.IQ3_XXS)),
            },
            eight=True,
            needs_importance=WEIGHTED,
        ),
        Recipe(
            *("iq3_XXS", DType.IQ3_XXS, 23),
            {
                "tokens": _always(_I3),
                "values": _if(True, _grouped(_Q4), _grouped(_Q4, _I3)),
                **dict.fromkeys(("keys", "queries"), _always(DType.IQ2_S)),
                "down": _if(False, _begin(8, _Q4, _Q3)),
                "out": _always(_I3),
            },
            _Q5,
            eight=True,
            needs_importance=WEIGHTED,
        ),
        Recipe(
            *("q2_K", _Q2, 10),
            {"values": _grouped(_Q4, _Q3), "down": _always(_Q3), "out": _always(_Q3)},
            eight=True,
        ),
        Recipe(
            *("q2_K_S", _Q2, 21),
            {"values": _grouped(_Q4), "down": _begin(8, _Q4)},
            needs_importance=frozenset((_Q2,)) | WEIGHTED,
        ),
        _tiny("iq2_M", DType.IQ2_S, 29, _I3, _I3),
        _tiny("iq2_S", DType.IQ2_XS, 28, _I3, _I3),
        _tiny("iq2_XS", DType.IQ2_XS, 20, _Q2),
        _tiny("iq2_XXS", _I2, 19, _Q2),
        _tiny("iq1_M", DType.IQ1_M, 31, _Q2, _I2),
        _tiny("iq1_S", DType.IQ1_S, 24, _Q2, _I2),
        Recipe("tq2_0", DType.TQ2_0, 37, _TERNARY),
        Recipe("tq1_0", DType.TQ1_0, 36, _TERNARY),
    )
}
_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "mxfp4_moe": "mxfp4"}


def recipe_of(name: str) -> Recipe:
    """The recipe called `name`, in any case.

    Raises:
        ConfigError: there is none; lists all.
    """
    key = name.strip().lower()
    recipe = RECIPES.get(_ALIASES.get(key, key))
    if recipe is None:
        near = difflib.get_close_matches(key, RECIPES, 1)
        hint = f"; did you mean {RECIPES[near[0]].name}?" if near else "."
        names = ", ".join(r.name for r in RECIPES.values())
        raise ConfigError(f"no type {name[:40]!r}{hint} Types are {names}")
    return recipe


@dataclass(frozen=True)
class Candidate:
    """A tensor whose type is to be chosen: its name, shape in ggml's order, and present type."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


def choose(
    recipe: Recipe,
    metadata: Mapping[str, Any],
    tensors: Iterable[Candidate],
    importance: Container[str] | None = None,
) -> dict[str, DType]:
    """Tensor name → type for all tensors of a file, in llama-quantize's order: by layer, then by
    name. Tensors that a recipe does not touch keep their type.

    Args:
        importance: names of the tensors in the importance matrix; None without one.

    Raises:
        ConfigError: the metadata has a text for a number.
        Unsupported: a tensor's type needs its importance, which is unknown.
    """
    model = Shape.of(metadata, importance is not None)
    ordered = sorted(tensors, key=lambda t: (_layer(t.name), t.name.encode()))
    # An encoder without a projector is the model's own, as Whisper's.
    towers = any(t.name.startswith(("v.", "mm.")) for t in ordered)
    own = metadata.get("general.architecture") != "clip" and towers
    kinds = [kind_of(t.name) for t in ordered if not (own and of_tower(t.name))]
    tied = "output" not in kinds
    # Rules count values among values, all others among layers.
    total = {"values": kinds.count("values")}
    counts: Counter[str] = Counter()
    types = {}
    for t in ordered:
        types[t.name] = t.dtype
        if not _changes(t, own):
            continue
        types[t.name] = recipe.dtype
        if recipe.dtype.is_quantized:
            kind = kind_of(t.name)
            if kind == "tokens" and tied:
                kind = "output"
            named = model.experts > 1 and kind in _BY_LAYER and not recipe.tiny
            i = _layer(t.name) if named else counts[kind]
            counts[kind] += 1
            rule = recipe.rules.get(kind)
            ruled = rule and rule(i, total.get(kind, model.layers), model)
            mixed = _mixed(recipe, model, t, kind, ruled or recipe.dtype)
            types[t.name] = _fitting(mixed, t.shape[0])
            if types[t.name] is not t.dtype:
                _check_importance(recipe, t.name, kind_of(t.name), types[t.name], importance)
    return types


def _check_importance(
    recipe: Recipe, name: str, kind: str, dtype: DType, entries: Container[str] | None
) -> None:
    if dtype not in recipe.needs_importance or kind in ("tokens", "output"):
        return
    if entries is None:
        raise Unsupported(
            f"{recipe.name} needs an importance matrix: `ggmodel imatrix` makes one, --imatrix "
            "(imatrix=…) takes it"
        )
    if name not in entries:
        raise Unsupported(
            f"the importance matrix has no entry for {name}, which {recipe.name} makes {dtype}; "
            "make one with this very model and a longer text"
        )


def _mixed(recipe: Recipe, model: Shape, t: Candidate, kind: str, ruled: DType) -> DType:
    """The type of a tensor by its kind, its width not yet considered.

    Args:
        ruled: the type that the recipe's rule for the kind gives.
    """
    own, eight = recipe.dtype, model.experts == 8
    if kind == "output":
        fits = t.shape[0] % own.block_size == 0
        return recipe.output if fits and own not in (DType.Q8_0, DType.MXFP4) else DType.Q8_0
    if own is DType.MXFP4:
        return own if len(t.shape) > 2 and t.shape[2] > 1 else DType.Q8_0
    if kind == "values" and not recipe.tiny:
        if eight:
            return DType.Q8_0
        return DType.Q5_K if model.large_llama and ruled in (DType.Q3_K, DType.Q4_K) else ruled
    if kind == "keys" and eight:
        return DType.Q4_K if recipe.tiny else DType.Q8_0
    if kind == "out" and eight:
        return DType.Q5_K if recipe.eight else own
    return ruled


# (part of a name, kind of tensor); the first that fits counts.
_KINDS = (
    ("attn_qkv.weight", "values"),
    ("attn_kv_b.weight", "values"),
    ("attn_v.weight", "values"),
    ("attn_k.weight", "keys"),
    ("attn_q.weight", "queries"),
    ("attn_output.weight", "out"),
    ("ffn_up", "up"),
    ("ffn_gate", "gate"),
    ("ffn_down", "down"),
)
_BY_LAYER = ("down", "gate", "up")


def kind_of(name: str) -> str:
    """The role of a tensor: "output", "tokens", "values", "keys", "queries", "out", "up", "gate",
    "down"; "" for all else."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "tokens"
    return next((kind for part, kind in _KINDS if part in name), "")


def _layer(name: str) -> int:
    """The number of the layer, -1 outside of layers."""
    match = re.match(r"blk\.(\d{1,9})\.", name)
    return int(match[1]) if match else -1


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
    if own and of_tower(t.name):
        return False
    matrix = any(n > 1 for n in t.shape[1:]) and t.name.endswith("weight")
    return matrix and t.name not in _KEPT and not any(part in t.name for part in _KEPT_PARTS)


# Substitutes for types whose blocks do not fill a row; the last resort is F16.
_NARROWER = {
    **dict.fromkeys((*WEIGHTED, DType.IQ3_S, DType.IQ4_XS), DType.IQ4_NL),
    **dict.fromkeys((DType.Q2_K, DType.Q3_K, DType.TQ1_0, DType.TQ2_0), DType.Q4_0),
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
    r"(position(al)?_emb|^token_types\.|ffn_gate_inp(_shexp)?\.|ssm_conv1d|shortconv\.conv|"
    r"\.conv_dw\.|^v\.conv_stem\.|altup_(correct|predict)_coef|time_mix_w[12]\.|"
    r"hc_(\w+_)?fn\.|compressor_ape\.)"
)

# llama.cpp convolves these in F16 alone: those over time, and those of each channel by itself.
_CONVOLVED = re.compile(r"a\.conv1d\.\d+\.weight")
_DEPTHWISE = re.compile(r"v\.blk\.\d+\.\d+\.(dw_\w+\.conv|attn\.\w+\.down_conv)\.weight")


def plain_type(
    name: str,
    sources: Sequence[str],
    shape: tuple[int, ...],
    matrices: DType,
    apart: bool = False,
) -> DType:
    """The type of a converted tensor before quantisation.

    Args:
        sources: its names in the checkpoint.
        shape: in ggml's order, as many dims as the checkpoint has.
        matrices: the type of matrices.
        apart: it goes into a file of towers alone (mmproj).
    """
    if apart and ((len(shape) == 3 and _CONVOLVED.match(name)) or _DEPTHWISE.match(name)):
        return DType.F16
    # llama.cpp reads only this of Gemma 3's, and goes by the checkpoint's name.
    if name == "mm.input_projection.weight" and any("input_projection" in s for s in sources):
        return DType.F16
    # Kernels of convolutions have four dims.
    matrix = 2 <= len(shape) <= 3 and name.endswith(".weight") and not name.endswith("_norm.weight")
    return matrices if matrix and not _PRECISE.search(name) else DType.F32
