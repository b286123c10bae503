"""The configurations of the apertus golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def apertus(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["ApertusForCausalLM"],
        "model_type": "apertus",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "xielu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 0.01,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 32,
            "rope_type": "llama3",
        },
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": apertus(),
    "biases": apertus(
        attention_bias=True,
        num_hidden_layers=3,
        num_key_value_heads=1,
        rope_scaling={"factor": 4.0, "rope_type": "linear"},
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but for the small number that is fixed."""
    values = weights.weight(name, shape)
    return np.full_like(values, -1e-6) if name.endswith("act_fn.eps") else values
