"""The configurations of the arcee golden files, as the config.json of a checkpoint."""

from typing import Any


def yarn(fast: float, slow: float) -> dict[str, Any]:
    return {
        "beta_fast": fast,
        "beta_slow": slow,
        "factor": 4.0,
        "mscale": 1.0,
        "original_max_position_embeddings": 32,
        "rope_type": "yarn",
    }


def arcee(**changes: Any) -> dict[str, Any]:
    """As AFM 4.5B is published; its epsilon large enough to be seen."""
    config = {
        "architectures": ["ArceeForCausalLM"],
        "model_type": "arcee",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 16,
        "hidden_act": "relu2",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 144,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 0.01,
        "rope_scaling": yarn(32.0, 1.0),
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "published": arcee(),
    # Biases everywhere, heads that are together wider than the model, another activation, tied.
    "biases": arcee(
        attention_bias=True,
        head_dim=32,
        hidden_act="silu",
        mlp_bias=True,
        num_hidden_layers=3,
        num_key_value_heads=1,
        rope_scaling=yarn(2.0, 0.5),
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}
