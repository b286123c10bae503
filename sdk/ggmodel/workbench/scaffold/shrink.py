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
# Keys about the vocabulary or the file, not about the architecture.
_DROPPED = ("pad_token_id", "transformers_version", "_name_or_path", "quantization_config")
_TOKEN = re.compile(r"(^|_)token_(id|index)s?$|_token$")
_BY_LAYER = ("layer_types", "mlp_layer_types")


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json of the same architecture with a few narrow layers.

    Sizes with usual names become small; scales, epsilons and kinds of layers stay. There are at
    least two layers, and enough for one of each kind in `layer_types`.
    """
    small = _with_small_tokens({k: _small(k, v) for k, v in config.items() if k not in _DROPPED})
    for name in _BY_LAYER:
        kinds = config.get(name)
        if isinstance(kinds, list) and kinds:
            n = max(2, *(kinds.index(kind) + 1 for kind in set(map(str, kinds)) if kind in kinds))
            small["num_hidden_layers"] = max(n, small.get("num_hidden_layers", 2))
    for name in _BY_LAYER:
        if isinstance(config.get(name), list):
            small[name] = config[name][: small["num_hidden_layers"]]
    for name, value in config.items():  # "fullatt_block_indexes"
        layers = small.get("depth", small.get("num_hidden_layers"))
        if name.endswith("_indexes") and isinstance(value, list) and isinstance(layers, int):
            small[name] = [i for i in value if i < layers] or [layers - 1]
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads is not None and heads == groups:
        small["num_key_value_heads"] = small["num_attention_heads"]
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


def _small(key: str, value: Any) -> Any:
    if key == "mrope_section" and isinstance(value, list):  # half of a head
        return [n * SMALL["head_dim"] // (2 * sum(value)) for n in value]
    if isinstance(value, Mapping):
        return shrunk(value)
    return SMALL[key] if key in SMALL and value is not None else value
