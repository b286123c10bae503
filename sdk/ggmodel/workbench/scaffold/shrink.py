"""Small configurations for tests, derived from those of real models."""

from __future__ import annotations

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
    "image_size": 32,
    "patch_size": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
    "dtype": "float32",
}
# Keys about the vocabulary or the file, not about the architecture.
_DROPPED = ("pad_token_id", "transformers_version", "_name_or_path", "quantization_config")
_BY_LAYER = ("layer_types", "mlp_layer_types")


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json of the same architecture with a few narrow layers.

    Sizes with usual names become small; scales, epsilons and kinds of layers stay. There are at
    least two layers, and enough for one of each kind in `layer_types`.
    """
    small = {k: _small(k, v) for k, v in config.items() if k not in _DROPPED}
    for name in _BY_LAYER:
        kinds = config.get(name)
        if isinstance(kinds, list) and kinds:
            n = max(2, *(kinds.index(kind) + 1 for kind in set(map(str, kinds)) if kind in kinds))
            small["num_hidden_layers"] = max(n, small.get("num_hidden_layers", 2))
    for name in _BY_LAYER:
        if isinstance(config.get(name), list):
            small[name] = config[name][: small["num_hidden_layers"]]
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads is not None and heads == groups:
        small["num_key_value_heads"] = small["num_attention_heads"]
    return small


def _small(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return shrunk(value)
    return SMALL[key] if key in SMALL and value is not None else value
