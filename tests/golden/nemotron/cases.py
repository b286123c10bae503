"""The configurations of the nemotron golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def nemotron(**changes: Any) -> dict[str, Any]:
    """As Minitron 4B is published; its epsilon large enough to be seen."""
    config = {
        "architectures": ["NemotronForCausalLM"],
        "model_type": "nemotron",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "head_dim": 16,
        "hidden_act": "relu2",
        "hidden_size": 64,
        "initializer_range": 0.0134,
        "intermediate_size": 144,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "norm_eps": 0.01,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "published": nemotron(),
    # Biases everywhere, heads that are together wider than the model, another part of each
    # rotated, another activation, tied.
    "biases": nemotron(
        attention_bias=True,
        head_dim=32,
        hidden_act="silu",
        mlp_bias=True,
        num_hidden_layers=3,
        num_key_value_heads=1,
        partial_rotary_factor=0.75,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but norms that multiply by 1 + weight have weights around 0."""
    values = weights.weight(name, shape)
    return values - np.float32(1) if name.endswith("norm.weight") else values
