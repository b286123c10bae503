"""The type of each tensor of a file that is converted or quantised.

The outcome is llama-quantize's for every tensor: tests/convert/quantized.json holds its choices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Unsupported
from ..gguf_file import DType
from ..model.names import of_tower
from .recipes import WEIGHTED, Recipe, Shape


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
    seen: Counter[str] = Counter()
    found = {}
    for t in ordered:
        found[t.name] = t.dtype
        if not _changes(t, own):
            continue
        found[t.name] = recipe.dtype
        if recipe.dtype.is_quantized:
            kind = kind_of(t.name)
            if kind == "tokens" and tied:
                kind = "output"
            named = model.experts > 1 and kind in _BY_LAYER and not recipe.tiny
            i = _layer(t.name) if named else seen[kind]
            seen[kind] += 1
            rule = recipe.rules.get(kind)
            ruled = rule and rule(i, total.get(kind, model.layers), model)
            mixed = _mixed(recipe, model, t, kind, ruled or recipe.dtype)
            found[t.name] = _fitting(mixed, t.shape[0])
            if found[t.name] is not t.dtype:
                _check_importance(recipe, t.name, kind_of(t.name), found[t.name], importance)
    return found


def _check_importance(
    recipe: Recipe, name: str, kind: str, dtype: DType, known: Container[str] | None
) -> None:
    if dtype not in recipe.needs_importance or kind in ("tokens", "output"):
        return
    if known is None:
        raise Unsupported(
            f"{recipe.name} needs an importance matrix: `ggmodel imatrix` makes one, --imatrix "
            "(imatrix=…) takes it"
        )
    if name not in known:
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
    r"\.conv_dw\.|^v\.conv_stem\.|altup_(correct|predict)_coef)"
)

# llama.cpp convolves these in F16 alone: those over time, and those of each channel by itself.
_CONVOLVED = re.compile(r"a\.conv1d\.\d+\.weight")
_DEPTHWISE = re.compile(r"v\.blk\.\d+\.\d+\.(dw_\w+\.conv|attn\.\w+\.down_conv)\.weight")


def plain_type(
    name: str,
    sources: Sequence[str],
    shape: tuple[int, ...],
    wanted: DType,
    apart: bool = False,
) -> DType:
    """The type of a converted tensor before quantisation.

    Args:
        sources: its names in the checkpoint.
        shape: in ggml's order, as many dims as the checkpoint has.
        wanted: the type of matrices.
        apart: it goes into a file of towers alone (mmproj).
    """
    if apart and ((len(shape) == 3 and _CONVOLVED.match(name)) or _DEPTHWISE.match(name)):
        return DType.F16
    # llama.cpp reads only this of Gemma 3's, and goes by the checkpoint's name.
    if name == "mm.input_projection.weight" and any("input_projection" in s for s in sources):
        return DType.F16
    # Kernels of convolutions have four dims.
    matrix = 2 <= len(shape) <= 3 and name.endswith(".weight") and not name.endswith("_norm.weight")
    return wanted if matrix and not _PRECISE.search(name) else DType.F32
