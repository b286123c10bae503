"""The configurations of the olmo_hybrid golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def olmo(**changes: Any) -> dict[str, Any]:
    """As Olmo-Hybrid-7B is published: values twice as wide as keys, no positions."""
    config = {
        "architectures": ["OlmoHybridForCausalLM"],
        "model_type": "olmo_hybrid",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_allow_neg_eigval": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": None, "rope_type": "default"},
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "published": olmo(),
    # Positions and biases, wider keys than values, of which two share a head of keys; layers in the
    # usual order, an epsilon that is seen.
    "rope": olmo(
        attention_bias=True,
        layer_types=...,
        linear_allow_neg_eigval=False,
        linear_conv_kernel_dim=2,
        linear_key_head_dim=32,
        linear_num_key_heads=2,
        linear_value_head_dim=16,
        num_key_value_heads=2,
        rms_norm_eps=1e-2,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        vocab_size=96,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but a delta net adds less: it multiplies results of matrices, and rounding
    shows no more than in layers of other models."""
    values = weights.weight(name, shape)
    return np.float32(1 / 3) * values if name.endswith("linear_attn.o_proj.weight") else values
