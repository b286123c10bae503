"""The configurations of the granite golden files, as the config.json of a checkpoint."""

from typing import Any


def granite(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_bias": False,
        "attention_multiplier": 0.31,
        "bos_token_id": 1,
        "embedding_multiplier": 1.7,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "logits_scaling": 0.6,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "residual_multiplier": 0.8,
        "rms_norm_eps": 1e-2,
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
    "plain": granite(),
    # As released: tied; biases besides. Deeper, since a shallow model with a tied random head
    # repeats the last token for ever.
    "tied": granite(
        attention_bias=True,
        mlp_bias=True,
        num_hidden_layers=3,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}
