"""The configurations of the gpt2 golden files, as the config.json of a checkpoint."""

from typing import Any


def gpt2(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "layer_norm_epsilon": 0.01,
        "n_embd": 64,
        "n_head": 4,
        "n_inner": None,
        "n_layer": 3,
        "n_positions": 128,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": 96,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": gpt2(),
    "untied": gpt2(
        activation_function="relu",
        n_head=2,
        n_inner=96,
        n_layer=2,
        tie_word_embeddings=False,
        vocab_size=64,
    ),
}

BOUNDS = {"plain": 1e-6}  # ggml's GELU reads a table in F16
