"""The configurations of the falcon_h1 golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def falcon(**changes: Any) -> dict[str, Any]:
    """As Falcon-H1-0.5B is published; multipliers nearer to one, an epsilon that is seen."""
    return {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.9,
        "attn_layer_indices": None,
        "bos_token_id": 1,
        "embedding_multiplier": 2.6,
        "eos_token_id": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "key_multiplier": 0.7,
        "lm_head_multiplier": 1.4,
        "mamba_chunk_size": 8,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 16,
        "mamba_d_ssm": 96,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 6,
        "mamba_norm_before_gate": False,
        "mamba_proj_bias": False,
        "mamba_rms_norm": False,
        "mamba_use_mlp": True,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "mlp_expansion_factor": 8,
        "mlp_multipliers": [0.8, 0.6],
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "num_logits_to_keep": 1,
        "pad_token_id": 0,
        "projectors_bias": False,
        "rms_norm_eps": 1e-2,
        "rope_scaling": None,
        "rope_theta": 100000000000.0,
        "ssm_in_multiplier": 1.25,
        "ssm_multipliers": [0.9, 0.8, 1.3, 0.7, 1.2],
        "ssm_out_multiplier": 0.6,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 64,
        **changes,
    }


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "published": falcon(),
    # A gated norm of two groups, biases, a tied head, no multipliers of parts.
    "norm": falcon(
        attention_bias=True,
        mamba_conv_bias=False,
        mamba_d_conv=2,
        mamba_n_groups=2,
        mamba_proj_bias=True,
        mamba_rms_norm=True,
        mlp_bias=True,
        mlp_multipliers=None,
        num_hidden_layers=2,
        projectors_bias=True,
        rope_theta=10000.0,
        ssm_multipliers=None,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
    "biases": falcon(attention_bias=True, mamba_proj_bias=True, mlp_bias=True, rope_theta=100.0),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but tied embeddings are smaller: each token would follow itself."""
    values = weights.weight(name, shape)
    return np.float32(1 / 4) * values if name.endswith("embed_tokens.weight") else values
