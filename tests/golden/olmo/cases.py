"""The configurations of the olmo golden files, as the config.json of a checkpoint."""

from typing import Any


def olmo(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["OlmoForCausalLM"],
        "model_type": "olmo",
        "attention_bias": False,
        "bos_token_id": 1,
        "clip_qkv": None,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": olmo(),
    # As 7B of version 1.7: queries, keys and values are bounded; biases besides, tied.
    "clipped": olmo(
        attention_bias=True,
        clip_qkv=0.9,
        num_hidden_layers=3,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}
