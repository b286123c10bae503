"""The configurations of the granitehybrid golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def granite(**changes: Any) -> dict[str, Any]:
    """As Granite 4.0 H is published, dense; its factors and its epsilon large enough to be seen."""
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_multiplier": 0.3,
        "bos_token_id": 1,
        "embedding_multiplier": 3.0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.1,
        "intermediate_size": 32,
        "layer_types": ["mamba", "attention", "mamba"],
        "logits_scaling": 1.5,
        "mamba_chunk_size": 8,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 8,
        "mamba_proj_bias": False,
        "max_position_embeddings": 128,
        "normalization_function": "rmsnorm",
        "num_attention_heads": 4,
        "num_experts_per_tok": 0,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "num_local_experts": 0,
        "output_router_logits": False,
        "position_embedding_type": "nope",
        "residual_multiplier": 0.6,
        "rms_norm_eps": 1e-2,
        "rope_scaling": None,
        "rope_theta": 10000,
        "router_aux_loss_coef": 0.01,
        "shared_intermediate_size": 96,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 64,
        **changes,
    }


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "dense": granite(),
    # Experts; biases of Mamba elsewhere, groups, widths of heads by the number of heads.
    "experts": granite(
        layer_types=["attention", "mamba"],
        mamba_conv_bias=False,
        mamba_d_conv=2,
        mamba_d_head="auto",
        mamba_n_groups=2,
        mamba_n_heads=4,
        mamba_proj_bias=True,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_local_experts=4,
    ),
    # Attention alone, with positions and biases; a tied head.
    "attention": granite(
        attention_bias=True,
        embedding_multiplier=0.3,
        layer_types=["attention"] * 3,
        num_hidden_layers=3,
        position_embedding_type="rope",
        residual_multiplier=1.4,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but routers are rarely near a tie."""
    values = weights.weight(name, shape)
    return np.float32(2) * values if name.endswith("router.layer.weight") else values
