"""The configurations of the glm4 golden files, as the config.json of a checkpoint."""

from typing import Any


def glm4(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Glm4ForCausalLM"],
        "model_type": "glm4",
        "attention_bias": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 0.01,
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
    "plain": glm4(),
    # Heads wider than hidden / heads, of which three quarters are rotated; no biases.
    "wide": glm4(
        attention_bias=False,
        head_dim=32,
        num_hidden_layers=3,
        num_key_value_heads=1,
        partial_rotary_factor=0.75,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}
