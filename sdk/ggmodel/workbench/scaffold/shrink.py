"""Small configurations for tests, derived from those of real models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Widths are multiples of 32, so that every matrix has whole Q8_0 blocks in its rows.
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "original_max_position_embeddings": 32,
    "vocab_size": 64,
    "sliding_window": 8,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
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
_BY_LAYER = ("layer_types", "mlp_layer_types")
# Mamba-2: heads, their size, their groups, and the width's factor; heads × size = factor × width.
_STATE_HEADS = (
    ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_expand"),
    ("num_heads", "head_dim", "n_groups", "expand"),
)


def shrunk(config: Mapping[str, Any], head_dim: int | None = None) -> dict[str, Any]:
    """A config.json of the same architecture with a few narrow layers.

    Sizes with usual names become small; scales, epsilons, kinds of layers and sizes of heads, from
    which other sizes follow, stay. There are at least two layers, and enough for one of each kind
    in `layer_types`. A config without `pad_token_id` gets null: the default of its class may lie
    beyond the small vocabulary.

    Args:
        head_dim: of the config around this one.
    """
    head_dim = config.get("head_dim") or head_dim
    small = {k: _small(k, v, head_dim) for k, v in config.items() if k not in _DROPPED}
    small = _with_small_tokens(small)
    if "vocab_size" in small:
        small.setdefault("pad_token_id", None)
    for name in _BY_LAYER:
        kinds = config.get(name)
        if isinstance(kinds, list) and kinds:
            n = max(2, *(kinds.index(kind) + 1 for kind in set(map(str, kinds)) if kind in kinds))
            small["num_hidden_layers"] = max(n, small.get("num_hidden_layers", 2))
    count = config.get("num_hidden_layers")
    for name, first in config.items():  # the first layer of its kind, in Jamba and DeepSeek
        of_kind = name.endswith(("_layer_offset", "first_k_dense_replace"))
        if of_kind and isinstance(first, int) and isinstance(count, int):
            small["num_hidden_layers"] = max(min(first + 1, count), small["num_hidden_layers"])
    layers = small.get("depth", small.get("num_hidden_layers"))
    for name, value in config.items():
        if isinstance(value, list) and len(value) == count:
            small[name] = value[:layers]
        # "fullatt_block_indexes"
        if name.endswith("_indexes") and isinstance(value, list) and isinstance(layers, int):
            small[name] = [i for i in value if i < layers] or [layers - 1]
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads is not None and heads == groups:
        small["num_key_value_heads"] = small["num_attention_heads"]
    for names in _STATE_HEADS:
        n, size, groups, factor = (config.get(name) for name in names)
        if n and size and factor and n * size == factor * (config.get("hidden_size") or 0):
            small[names[0]] = n = max(1, small["hidden_size"] * factor // size)
            small[names[2]] = min(groups or 1, n)
    return small


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


def _small(key: str, value: Any, head_dim: int | None) -> Any:
    if key == "mrope_section" and isinstance(value, list) and not head_dim:  # half of a head
        return [n * SMALL["head_dim"] // (2 * sum(value)) for n in value]
    if isinstance(value, Mapping):
        return shrunk(value, head_dim)
    if key == "head_dim":
        return value
    return SMALL[key] if key in SMALL and value is not None else value
