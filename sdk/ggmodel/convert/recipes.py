"""The mixtures of types that a file can be quantised to.

They are those of llama.cpp's llama-quantize. Errors hurt most in attention's values, in the maps
down from the feed-forward width and in the output, so these get more bits.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..gguf_file import DType
from ..gguf_file.metadata import check_kind


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
    found = RECIPES.get(_ALIASES.get(key, key))
    if found is None:
        near = difflib.get_close_matches(key, RECIPES, 1)
        hint = f"; did you mean {RECIPES[near[0]].name}?" if near else "."
        names = ", ".join(r.name for r in RECIPES.values())
        raise ConfigError(f"no type {name[:40]!r}{hint} Types are {names}")
    return found
