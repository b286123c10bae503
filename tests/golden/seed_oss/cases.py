"""The configurations of the seed_oss golden files, as the config.json of a checkpoint."""

from typing import Any


def seed_oss(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["SeedOssForCausalLM"],
        "model_type": "seed_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "attention_out_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "residual_dropout": 0.0,
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
    "plain": seed_oss(),
    # As released: heads that are together wider than the model. Biases everywhere, tied.
    "wide": seed_oss(
        attention_out_bias=True,
        head_dim=32,
        mlp_bias=True,
        num_hidden_layers=3,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}
