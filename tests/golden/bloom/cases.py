"""The configurations of the bloom golden files, as the config.json of a checkpoint."""

from typing import Any


def bloom(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "apply_residual_connection_post_layernorm": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 64,
        "layer_norm_epsilon": 0.01,
        "n_head": 4,
        "n_layer": 2,
        "pretraining_tp": 1,
        "seq_length": 128,
        "slow_but_exact": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": bloom(),
    # Heads that are no power of two; an untied head, the older name of a key.
    "twelve_heads": bloom(
        hidden_size=...,
        n_embed=96,
        n_head=12,
        n_layer=3,
        tie_word_embeddings=False,
        vocab_size=96,
    ),
    "three_heads": bloom(hidden_size=48, n_head=3, layer_norm_epsilon=1e-5),
}

BOUNDS = dict.fromkeys(CASES, 1e-6)  # ggml's GELU reads a table in F16
