"""The configurations of the granitemoe golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def granite(**changes: Any) -> dict[str, Any]:
    """As Granite 3.1 1B A400M is published; its factors and its epsilon large enough to be seen."""
    return {
        "architectures": ["GraniteMoeForCausalLM"],
        "model_type": "granitemoe",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_multiplier": 0.31,
        "bos_token_id": 1,
        "embedding_multiplier": 0.4,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 32,
        "logits_scaling": 0.6,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "output_router_logits": False,
        "residual_multiplier": 1.3,
        "rms_norm_eps": 1e-2,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 96,
        **changes,
    }


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "published": granite(),
    # An expert that all tokens share, biases of attention, an output of its own.
    "shared": granite(
        architectures=["GraniteMoeSharedForCausalLM"],
        model_type="granitemoeshared",
        attention_bias=True,
        embedding_multiplier=1.7,
        num_experts_per_tok=3,
        num_hidden_layers=2,
        num_key_value_heads=1,
        num_local_experts=6,
        residual_multiplier=0.8,
        shared_intermediate_size=96,
        tie_word_embeddings=False,
        vocab_size=64,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but routers are rarely near a tie."""
    values = weights.weight(name, shape)
    return np.float32(2) * values if name.endswith("router.layer.weight") else values
