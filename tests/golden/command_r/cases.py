"""The configurations of the command_r golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def command_r(**changes: Any) -> dict[str, Any]:
    """As Command R is published, with the keys that nobody reads."""
    return {
        "architectures": ["CohereForCausalLM"],
        "model_type": "cohere",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 5,
        "eos_token_id": 6,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "max_position_embeddings": 64,
        "model_max_length": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "pad_token_id": 0,
        "pretraining_tp": 1,
        "rope_theta": 8000000.0,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_qk_norm": False,
        "vocab_size": 64,
        **changes,
    }


PROMPT, LENGTHS = 32, dict[str, int]()
MARGIN = 0.006  # logits are scaled

CASES: dict[str, dict[str, Any]] = {
    "published": command_r(),
    # As Command R+: queries and keys have a norm with weights for each head.
    "plus": command_r(use_qk_norm=True, num_key_value_heads=2, rope_theta=75000000.0),
    # As Aya 23; an output of its own, biases, an epsilon large enough to be seen.
    "bias": command_r(
        attention_bias=True,
        layer_norm_eps=1e-2,
        num_hidden_layers=3,
        num_key_value_heads=1,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        vocab_size=96,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but embeddings are smaller: a tied head would repeat the last token. The
    last norm makes up for that in the logits."""
    values = weights.weight(name, shape)
    if name.endswith("embed_tokens.weight"):
        return np.float32(1 / 8) * values
    return np.float32(4) * values if name.endswith("model.norm.weight") else values
