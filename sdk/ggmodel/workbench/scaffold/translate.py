"""A checkpoint's names in llama.cpp's, and in those that an architecture's declaration expects.

Other checkpoints call the same tensors differently: `self_attn.q_layernorm` is what qwen3 calls
`self_attn.q_norm`. Both are `attn_q_norm` in llama.cpp, so the declaration's field serves once its
`hf=` is corrected.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ...model import Model, Module
from ...model.module import FieldType, TensorField, module_fields
from ..nodes import folded

ROTATED = "rope.dimension_count"
# Key of config.json → key of GGUF files without the architecture, as llama.cpp's converter writes
# them; the gguf package has the keys alone.
KEYS: Mapping[str, str] = {
    "attention_multiplier": "attention.scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "clip_qkv": "attention.clamp_kqv",
    "conv_L_cache": "shortconv.l_cache",
    "embedding_multiplier": "embedding_scale",
    "ffn_hidden_size": "feed_forward_length",
    "final_logit_softcapping": "final_logit_softcapping",
    "first_k_dense_replace": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "logit_scale": "logit_scale",
    "logits_scaling": "logit_scale",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
    "moe_intermediate_size": "expert_feed_forward_length",
    "moe_topk": "expert_used_count",
    "n_group": "expert_group_count",
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "norm_topk_prob": "expert_weights_norm",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "num_local_experts": "expert_count",
    "partial_rotary_factor": ROTATED,
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": ROTATED,
    "residual_multiplier": "residual_scale",
    "rope_parameters.mrope_section": "rope.dimension_sections",
    "rope_scaling.mrope_section": "rope.dimension_sections",
    "rope_scaling.partial_rotary_factor": ROTATED,
    "rotary_pct": ROTATED,
    "routed_scaling_factor": "expert_weights_scale",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "topk_group": "expert_group_used_count",
    "v_head_dim": "attention.value_length",
}
# Key below `vision_config` → a name, and the key behind "vision.", in mmproj files "clip.vision.".
VISION_KEYS: Mapping[str, tuple[str, str]] = {
    "depth": ("vision_layers", "block_count"),
    "fullatt_block_indexes": ("vision_full_layers", "wa_layer_indexes"),
    "hidden_size": ("vision_width", "embedding_length"),
    "image_size": ("image_size", "image_size"),
    "intermediate_size": ("vision_ffn", "feed_forward_length"),
    "layer_norm_eps": ("vision_eps", "attention.layer_norm_epsilon"),
    "num_attention_heads": ("vision_heads", "attention.head_count"),
    "num_heads": ("vision_heads", "attention.head_count"),
    "num_hidden_layers": ("vision_layers", "block_count"),
    "out_hidden_size": ("projection_width", "projection_dim"),
    "patch_size": ("patch_size", "patch_size"),
    "spatial_merge_size": ("merge_size", "spatial_merge_size"),
    "window_size": ("vision_window", "window_size"),
}


# Name in transformers → llama.cpp's, as its converter writes it, where the two differ in more than
# punctuation.
ARCHITECTURES: Mapping[str, str] = {
    "cohere": "command-r",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "gpt_bigcode": "starcoder",
    "granitemoehybrid": "granitehybrid",
    "granitemoeshared": "granitemoe",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "phi": "phi2",
    "xlm_roberta": "bert",
}


def llama_cpp_name(name: str) -> str:
    """An architecture's name in llama.cpp's files, given that in transformers; the name itself if
    llama.cpp has none."""
    from gguf.constants import MODEL_ARCH_NAMES  # late, as below

    plain = {_plain(other): other for other in MODEL_ARCH_NAMES.values()}
    return ARCHITECTURES.get(re.sub(r"\W", "_", name), plain.get(_plain(name), name))


_BIAS = "_bias"


def gguf_name(module: str, architecture: str) -> str | None:
    """llama.cpp's name of a module's tensors, numbers of layers as "*"; None if it has none. A
    tensor that is a bias by its own name is called one: "gate.e_score_correction_bias" is
    "exp_probs_b.bias".

    Args:
        module: its name in checkpoints, "model.layers.*.self_attn.q_layernorm".
        architecture: whose names come first, if llama.cpp has one called so.
    """
    bias = module.endswith(_BIAS)
    while True:
        plain = module.removesuffix(_BIAS)
        for name in (module, plain, f"{plain}_proj") if bias else (module,):  # "dt_bias", too
            for names in (_names(architecture), _names("")):
                if name in names:
                    return names[name] + ".bias" * bias
        module = module.partition(".")[2]
        if "." not in module and module != "lm_head":  # "norm" alone may be any
            return None


@functools.cache
def _names(architecture: str) -> dict[str, str]:
    """Name in checkpoints → name in files, numbers as "*": of one architecture, or of any."""
    # Imported late: it is slow, and only `new` needs it.
    from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
    from gguf.tensor_mapping import TensorNameMap

    names: dict[str, str] = {}
    towers = MODEL_ARCH_NAMES[MODEL_ARCH.MMPROJ]
    for arch, name in MODEL_ARCH_NAMES.items():
        if _plain(name) == _plain(architecture) or (not architecture and name != towers):
            for hf, (_, gguf) in TensorNameMap(arch, 1).mapping.items():
                names.setdefault(folded(hf), folded(gguf))
    if not architecture:
        for hf, (_, gguf) in TensorNameMap(MODEL_ARCH.MMPROJ, 1).mapping.items():
            names.setdefault(folded(hf), folded(gguf))
    return names


def _plain(name: str) -> str:
    return re.sub(r"\W|_", "", name).lower()


# Prefixes of a text model's tensors, beside a vision tower too.
_ROOT = re.compile(r"^((?:\w+\.)+)embed_tokens\.weight$")


@dataclass(frozen=True)
class Declared:
    """A field of a declaration, by its first names.

    Attributes:
        owner: the class that has it.
        hf, gguf: its full names, numbers of layers as "*", without ".weight".
        own: its name in checkpoints below that of its module.
        holder: the field whose module has it; None in the model.
    """

    owner: type[Module]
    name: str
    tag: TensorField
    kind: FieldType
    hf: str
    gguf: str
    own: str
    holder: Declared | None = None

    @property
    def leaf(self) -> bool:
        """Whether it is a tensor, or a module with a weight."""
        return _leaf(self.kind)


@dataclass(frozen=True)
class Correction:
    """Another name of a field in checkpoints, and in files where llama.cpp has another, too."""

    field: Declared
    hf: str
    gguf: str | None = None


@dataclass
class Translation:
    """How a checkpoint's names become those of a declaration.

    Attributes:
        corrections: (class, field) → its names.
        names: name of a tensor in the declaration's spelling → in the checkpoint's.
    """

    corrections: dict[tuple[type[Module], str], Correction]
    names: dict[str, str]


def declared_fields(cls: type[Model]) -> list[Declared]:
    """The fields of an architecture and of all modules that it may consist of."""
    return list(_declared(cls, "", "", "", None))


def _declared(
    cls: type[Module], hf: str, gguf: str, suffix: str, holder: Declared | None
) -> Iterator[Declared]:
    for name, (tag, kind) in module_fields(cls).items():
        first = f"{tag.prefix}{tag.names[0]}" if tag.names else ""
        leaf = _leaf(kind)
        for own in tag.hf or (tag.names[:1] if leaf else ("",)):
            if not isinstance(own, str):
                continue
            star = "*" if kind.many else ""
            file = _join("" if tag.root else gguf, f"{first}{suffix if leaf and first else ''}")
            declared = Declared(
                cls, name, tag, kind, _join(hf, own, star), _join(file, star), own, holder
            )
            yield declared
            for choice in () if leaf else kind.choices:
                if issubclass(choice, Module):
                    yield from _declared(choice, declared.hf, declared.gguf, tag.suffix, declared)


def _leaf(kind: FieldType) -> bool:
    return all(
        not issubclass(choice, Module) or "weight" in module_fields(choice)
        for choice in kind.choices
    )


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def base_of(tensor: str) -> tuple[str, str]:
    """The module of a tensor and its leaf: "weight", "bias", or "" for a tensor without."""
    base, _, leaf = tensor.rpartition(".")
    return (base, leaf) if leaf in ("weight", "bias") else (tensor, "")


def translate(cls: type[Model], architecture: str, tensors: Collection[str]) -> Translation:
    """The tensors of a checkpoint in the spelling of a declaration.

    Args:
        architecture: the name of the new one, whose names in llama.cpp come first.
    """
    fields = declared_fields(cls)
    done = Translation({}, {name: name for name in tensors})
    _move_root(done, cls, fields)
    there = {folded(base_of(name)[0]) for name in done.names}
    leaves = [f for f in fields if f.leaf]
    unread = sorted(there - {f.hf for f in leaves})
    served = {(f.owner, f.name) for f in leaves if f.hf in there}
    renames: dict[str, str] = {}
    for base in unread:
        name = gguf_name(base, architecture)
        for like in leaves:
            key = like.owner, like.name
            if like.gguf == name and key not in served and _correct(done, like, base, there):
                served.add(key)
                renames[base] = like.hf
                break
    for base in unread:
        if base not in renames and (like := _only_norm(leaves, served, unread, base)):
            own = base if like.holder is None else base.rpartition(".")[2]
            name = gguf_name(base, architecture)
            done.corrections[like.owner, like.name] = Correction(like, own, name)
            renames[base] = like.hf
    done.names = {_renamed(name, renames): theirs for name, theirs in done.names.items()}
    return done


def _move_root(done: Translation, cls: type[Model], fields: list[Declared]) -> None:
    """Corrects where the text model lies: "model.text_model." instead of "model."."""
    roots = [f.hf.removesuffix("embed_tokens") for f in fields if f.gguf == "token_embd"]
    places = [match[1] for name in done.names if (match := _ROOT.match(name))]
    if not places or not roots or not roots[0] or places[0] in roots:
        return
    place, root = places[0], roots[0]
    moved = {n: root + n.removeprefix(place) if n.startswith(place) else n for n in done.names}
    if len(set(moved.values())) < len(moved):
        return
    done.names = {moved[name]: theirs for name, theirs in done.names.items()}
    for f in fields:
        if f.owner is cls and f.own.startswith(root):
            hf = place + f.own.removeprefix(root)
            done.corrections.setdefault((cls, f.name), Correction(f, hf))


def _correct(done: Translation, like: Declared, base: str, there: Collection[str]) -> bool:
    """Whether a field can read a tensor of another name; the corrections are added."""
    module, last = _place(like), base.rpartition(".")[2]
    if not module or base.startswith(f"{module}."):
        own = base[len(module) + 1 :] if module else base
        if "*" not in own:
            done.corrections[like.owner, like.name] = Correction(like, own)
        return "*" not in own
    holder = like.holder
    assert holder is not None
    outer, parent = _place(holder), base.rpartition(".")[0]
    if any(name.startswith(f"{module}.") for name in there) or not parent.startswith(f"{outer}."):
        return False
    hf = parent[len(outer) + 1 :]
    moved = done.corrections.get((holder.owner, holder.name), Correction(holder, hf))
    if moved.hf != hf or "*" in hf:
        return False
    done.corrections[holder.owner, holder.name] = moved
    if last != like.own:
        done.corrections[like.owner, like.name] = Correction(like, last)
    return True


def _only_norm(
    leaves: list[Declared],
    served: Collection[tuple[type[Module], str]],
    unread: list[str],
    base: str,
) -> Declared | None:
    """The only norm of a module that nothing fills, if the tensor is the only one left there."""

    def place(name: str) -> str:
        return name.rpartition(".")[0].removesuffix("model")

    def norm(name: str) -> bool:
        return "norm" in name.rpartition(".")[2]

    free = [f for f in leaves if (f.owner, f.name) not in served and norm(f.hf)]
    free = [f for f in free if place(f.hf) == place(base) and not f.kind.optional]
    left = [b for b in unread if place(b) == place(base) and norm(b)]
    return free[0] if len({f.name for f in free}) == 1 and left == [base] else None


def _place(field: Declared) -> str:
    """The name of the module that has a field."""
    return field.holder.hf if field.holder else ""


def _renamed(name: str, renames: Mapping[str, str]) -> str:
    base, leaf = base_of(name)
    to = renames.get(folded(base))
    if to is None:
        return name
    numbers = iter(re.findall(r"(?<=\.)\d+(?=\.|$)", base))
    return _join(re.sub(r"\*", lambda _: next(numbers, "*"), to), leaf)
