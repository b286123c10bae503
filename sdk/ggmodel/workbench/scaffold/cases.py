"""Tiny configurations of a new architecture, each of which a golden is made of.

`shrunk` makes the first from a checkpoint's: its sizes small, its numbers such that a forward that
ignores one is seen. `variants` change what other checkpoints of the class may have otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...model import Model, config_class
from ...model.config import key_fields
from .source import quoted

# Widths are multiples of 32, so that every matrix has whole Q8_0 blocks in its rows.
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "n_embd": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 96,
    "shared_intermediate_size": 96,
    "shared_expert_intermediate_size": 96,
    "moe_shared_expert_intermediate_size": 96,
    "hidden_size_per_layer_input": 32,
    "q_lora_rank": 96,
    "kv_lora_rank": 32,
    "laurel_rank": 32,
    "mamba_d_state": 32,
    "mamba_dt_rank": 4,
    "state_size": 32,
    "ssm_state_size": 32,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "original_max_position_embeddings": 32,
    "vocab_size": 64,
    "vocab_size_per_layer_input": 64,
    "sliding_window": 8,
    "local_attention": 8,
    "n_group": 4,
    "topk_group": 2,
    "n_routed_experts": 8,
    "num_local_experts": 4,
    "num_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "depth": 2,
    "num_heads": 4,
    "out_hidden_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
    "dtype": "float32",
}
# Keys about the file, not about the architecture.
_DROPPED = ("transformers_version", "_name_or_path", "quantization_config")
_TOKEN = re.compile(r"(^|_)token_(id|index)s?$|_token$")
_BY_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type")
_LAYERS = ("num_hidden_layers", "n_layer", "depth")
_FIRST_DENSE = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
_HEAD = re.compile(r"head_dim$|_d_head$")
_LEAST_HEAD = 16
# Mamba-2: heads, their size, their groups, the width's factor, and the width if a config has it:
# heads × size = factor × width.
_STATE_HEADS = (
    ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_expand", "mamba_d_ssm"),
    ("mamba_num_heads", "mamba_head_dim", "n_groups", "expand", ""),
    ("num_heads", "head_dim", "n_groups", "expand", ""),
)
# Numbers that prove nothing where they are one, or too small to be seen.
_FACTOR = re.compile(r"multipliers?$|(^|_)(scale|scaling)$|scaling_factor$")
_EPSILON = re.compile(r"(^|_)eps(ilon)?$")
_BASE = re.compile(r"rope_theta$|base_freq$|rotary_emb_base$")
_ODD = (1.3, 0.7, 1.2, 0.8, 1.4, 0.6, 1.1, 0.9)
_EPS, _SCORES = 1e-2, 0.3  # of norms; of attention's scores, for heads of 16


def shrunk(config: Mapping[str, Any], head_dim: int | None = None) -> dict[str, Any]:
    """A config.json of the same architecture with a few narrow layers.

    Sizes with usual names become small; those of heads together, so that their sums and ratios
    stay. There are at least two layers, and enough for one of each kind. Factors become odd numbers
    near one, epsilons large and bases of rope small, so that each changes the results. Counts by
    layer differ. A config without `pad_token_id` gets null: the default of its class may lie beyond
    the small vocabulary.

    Args:
        head_dim: of the config around this one.
    """
    head_dim = config.get("head_dim") or head_dim
    small = {k: _small(k, v, head_dim) for k, v in config.items() if k not in _DROPPED}
    small = _with_small_heads(_with_small_tokens(small))
    if "vocab_size" in small:
        small.setdefault("pad_token_id", None)
    _set_layers(small, config)
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads is not None and heads == groups:
        small["num_key_value_heads"] = small["num_attention_heads"]
    for names in _STATE_HEADS:
        n, size, groups, factor = (config.get(name) for name in names[:4])
        if not (n and size and factor and config.get("hidden_size")):
            continue
        inner = small["hidden_size"] * factor
        small[names[0]] = n = max(1, inner // small[names[1]])
        small[names[2]] = min(groups or 1, n, 2)
        if config.get(names[4]):
            small[names[4]] = inner
    return _with_odd_numbers(small, iter(_ODD * len(config)))


def _small(key: str, value: Any, head_dim: int | None) -> Any:
    if key == "mrope_section" and isinstance(value, list) and not head_dim:  # half of a head
        return [n * _LEAST_HEAD // (2 * sum(value)) for n in value]
    if isinstance(value, Mapping):
        return shrunk(value, head_dim)
    if key in ("n_group", "topk_group") and value == 1:
        return value
    return SMALL[key] if key in SMALL and value is not None else value


def _with_small_heads(config: dict[str, Any]) -> dict[str, Any]:
    """The config with all sizes of heads divided by one power of two, the smallest at least 16; as
    they are where a rope is cut into sections."""
    sizes = [v for k, v in config.items() if _HEAD.search(k) and isinstance(v, int) and v > 0]
    ropes = (config.get("rope_parameters"), config.get("rope_scaling"))
    if not sizes or any(isinstance(rope, dict) and "mrope_section" in rope for rope in ropes):
        return config
    by = 1
    while min(sizes) // (2 * by) >= _LEAST_HEAD and not any(n % (2 * by) for n in sizes):
        by *= 2
    return {k: v // by if _HEAD.search(k) and isinstance(v, int) else v for k, v in config.items()}


def _set_layers(small: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Sets the number of layers, so that there is one of each kind, and all that is by layer."""
    by_layer = [k for k in _BY_LAYER if isinstance(config.get(k), list) and config[k]]
    named = next((k for k in _LAYERS if isinstance(small.get(k), int)), None)
    count = config[named] if named else max((len(config[k]) for k in by_layer), default=0)
    layers = min(count, 2)
    for name in by_layer:
        kinds = config[name]
        layers = max(layers, *(kinds.index(kind) + 1 for kind in kinds))
    for name, first in config.items():  # the first layer of its kind, in Jamba and DeepSeek
        if name in _FIRST_DENSE and isinstance(first, int) and "mlp_layer_types" not in by_layer:
            small[name] = min(first, 1)
        elif name.endswith("_layer_offset") and isinstance(first, int):
            layers = max(layers, min(first + 1, count))
        elif name.endswith("_layer_end_index") and isinstance(first, int):
            small[name] = layers - 1
    if config.get("num_kv_shared_layers"):  # behind one of each kind, which they share
        small["num_kv_shared_layers"], layers = layers, 2 * layers
    if named:
        small[named] = layers
    for name, value in config.items():
        if isinstance(value, list) and len(value) == count:
            small[name] = _by_layer(name, value[:layers])
        # "fullatt_block_indexes"
        if name.endswith("_indexes") and isinstance(value, list):
            small[name] = [i for i in value if i < layers] or [layers - 1]
        if isinstance(value, Mapping) and value and all(map(str.isdigit, value)):
            small[name] = {k: v for k, v in small[name].items() if int(k) < layers}


def _by_layer(name: str, values: list[Any]) -> list[Any]:
    """Small values for counts of heads and sizes by layer: two that take turns."""
    if not all(type(n) is int and n > 1 for n in values):
        return values
    two = (4, 6) if "heads" in name else (128, 96) if name.endswith("size") else values
    return [two[i % 2] for i in range(len(values))] if two is not values else values


def _with_small_tokens(config: dict[str, Any]) -> dict[str, Any]:
    """The config with ids of tokens within its vocabulary: those beyond are its last ones, each in
    the same place as before."""
    size, beyond = SMALL["vocab_size"], set[int]()
    for key, value in config.items():
        if _TOKEN.search(key):
            ids = value if isinstance(value, list) else [value]
            beyond |= {n for n in ids if isinstance(n, int) and n >= size}
    new = {n: size - len(beyond) + i for i, n in enumerate(sorted(beyond))}

    def cut(value: Any) -> Any:
        if isinstance(value, list):
            return [cut(item) for item in value]
        return new.get(value, value) if isinstance(value, int) else value

    return {k: cut(v) if _TOKEN.search(k) else v for k, v in config.items()}


def _with_odd_numbers(config: dict[str, Any], odd: Iterator[float]) -> dict[str, Any]:
    def other(key: str, value: Any) -> Any:
        if isinstance(value, list) and _FACTOR.search(key):
            return [other(key, item) for item in value]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        if key == "attention_multiplier":
            return _SCORES
        if _FACTOR.search(key):
            return next(odd)
        if _EPSILON.search(key):
            return _EPS
        return float(math.isqrt(round(value))) if _BASE.search(key) and value > 1 else value

    return {key: other(key, value) for key, value in config.items()}


_SWITCHES = (
    *("attention_bias", "mlp_bias", "use_bias", "qkv_bias", "use_qkv_bias", "lm_head_bias"),
    *("attention_out_bias", "norm_bias", "mamba_conv_bias", "mamba_proj_bias", "use_conv_bias"),
    *("norm_topk_prob", "use_expert_bias", "mamba_rms_norm", "mamba_norm_before_gate"),
    *("use_qk_norm", "qk_layernorm", "use_parallel_residual", "mup_enabled"),
)
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_PART = "partial_rotary_factor"
_MAGNITUDES = {"mscale": 0.8, "mscale_all_dim": 0.6}  # of latent attention, which scales by both


def variants(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The changes that make further cases of a small config, by their names.

    Args:
        config: of the text model, as `shrunk` makes it.
    """
    cases: dict[str, dict[str, Any]] = {}
    if isinstance(tied := config.get("tie_word_embeddings"), bool):
        cases["untied" if tied else "tied"] = {"tie_word_embeddings": not tied}
    if switches := {k: not config[k] for k in _SWITCHES if isinstance(config.get(k), bool)}:
        cases["switched"] = switches
    if rope := _other_rope(config):
        cases["unscaled" if _scaled(config) else "yarn"] = rope
    if (groups := config.get("n_group")) and config.get("n_routed_experts", 8) % 4 == 0:
        n, most = (4, 2) if groups == 1 else (1, 1)
        experts = {"num_experts": 8} if "num_experts" in config else {}
        cases["groups" if n > 1 else "ungrouped"] = {"n_group": n, "topk_group": most, **experts}
    return cases


def _scaled(config: Mapping[str, Any]) -> bool:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return rope.get("rope_type", rope.get("type", "default")) != "default"


def _other_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope without its scaling, or with YaRN's; {} for a config without rope, or with one for
    each kind of layers."""
    rope = config.get("rope_parameters")
    if isinstance(rope, Mapping) and any(isinstance(v, Mapping) for v in rope.values()):
        return {}
    if rope is None and "rope_theta" not in config:
        return {}
    if _scaled(config):
        plain = {k: v for k, v in (rope or {}).items() if k in ("rope_theta", _PART)}
        new = {"rope_parameters": {**plain, "rope_type": "default"}}
        return new if rope else {"rope_scaling": None}
    yarn = _YARN | (_MAGNITUDES if "qk_rope_head_dim" in config else {})
    return {"rope_parameters": {**rope, **yarn}} if rope else {"rope_scaling": yarn}


_ENCODER = re.compile(r"(\w+?)(Model|ForMaskedLM|For\w+Classification)")


def encoder_of(config: Mapping[str, Any]) -> str | None:
    """The class of transformers that computes the states of an encoder; None for a config that
    names a class with logits."""
    listed = config.get("architectures")
    first = listed[0] if isinstance(listed, list | tuple) and listed else None
    match = _ENCODER.fullmatch(first) if isinstance(first, str) else None
    return None if match is None or match[1].endswith("LMHead") else f"{match[1]}Model"


def listed(config: Mapping[str, Any]) -> str:
    """The entries of CASES, or of EMBEDDINGS for an encoder, in terms of PLAIN."""
    inner = config.get("text_config")
    cases = {"plain": dict[str, Any](), **variants(inner if inner else config)}
    form = "({}, {{}}, [12, 1, 17, 3])" if encoder_of(config) else "{}"
    lines = []
    for name, changes in cases.items():
        entries = [f"{quoted(k)}: {literal(v, 8)}" for k, v in changes.items()]
        if inner and changes:
            entries = [f'"text_config": {{**PLAIN["text_config"], {", ".join(entries)}}}']
        rows = "".join(f"        {entry},\n" for entry in ("**PLAIN", *entries))
        config_json = f"{{\n{rows}    }}" if changes else "PLAIN"
        lines.append(f"    {quoted(name)}: {form.format(config_json)},")
    return "\n".join(lines)


def small_config(cls: type[Model]) -> dict[str, Any]:
    """A small config.json with the keys that an architecture reads."""
    config: dict[str, Any] = {}
    for _, tag, kind, _ in key_fields(config_class(cls)):
        for key in tag.hf:
            if isinstance(key, str) and "." not in key:
                if key in SMALL:
                    config[key] = SMALL[key]
                elif _EPSILON.search(key):
                    config[key] = _EPS
                elif kind is float and key == "rope_theta":
                    config[key] = 100.0
    for experts in ("num_local_experts", "num_experts", "num_experts_per_tok", "sliding_window"):
        config.pop(experts, None)
    more = {k: SMALL[k] for k in ("bos_token_id", "eos_token_id", "vocab_size", "torch_dtype")}
    return {**config, **more, "hidden_act": "silu", "tie_word_embeddings": False}


def literal(value: Any, indent: int = 4) -> str:
    """A JSON value as Python: dictionaries with an entry a line, strings in double quotes."""
    if isinstance(value, Mapping):
        inner = " " * (indent + 4)
        items = (f"{inner}{literal(k)}: {literal(v, indent + 4)},\n" for k, v in value.items())
        return f"{{\n{''.join(items)}{' ' * indent}}}" if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(literal(v, indent) for v in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return quoted(value) if isinstance(value, str) else repr(value)
