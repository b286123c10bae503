"""The configurations of the ernie4_5 golden files, as the config.json of a checkpoint."""

from typing import Any


def ernie4_5(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Ernie4_5ForCausalLM"],
        "model_type": "ernie4_5",
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
        "rms_norm_eps": 0.01,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_bias": False,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": ernie4_5(),
    # As 0.3B: tied, heads that are together wider than the model; biases besides.
    "wide": ernie4_5(
        head_dim=32,
        num_hidden_layers=3,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        use_bias=True,
        vocab_size=96,
    ),
}
