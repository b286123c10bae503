"""The configurations of the jamba golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def jamba(**changes: Any) -> dict[str, Any]:
    """As Jamba 1.5 is published, with the keys that nobody reads."""
    return {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "attention_dropout": 0.0,
        "attn_layer_offset": 1,
        "attn_layer_period": 3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_dt_rank": 8,
        "mamba_expand": 2,
        "mamba_proj_bias": False,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "num_logits_to_keep": 1,
        "output_router_logits": False,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_mamba_kernels": True,
        "vocab_size": 64,
        **changes,
    }


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "published": jamba(),
    # As Jamba 3B: no experts. A rank by the width, another expansion, biases elsewhere.
    "dense": jamba(
        attn_layer_offset=0,
        attn_layer_period=2,
        mamba_conv_bias=False,
        mamba_d_conv=2,
        mamba_dt_rank="auto",
        mamba_expand=3,
        mamba_proj_bias=True,
        num_experts=1,
        num_experts_per_tok=1,
        num_hidden_layers=2,
        num_key_value_heads=1,
        rms_norm_eps=1e-2,
        vocab_size=96,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but Mamba adds less: it multiplies results of matrices, and rounding shows
    no more than in layers of other models. Routers are rarely near a tie."""
    values = weights.weight(name, shape)
    if name.endswith("mamba.out_proj.weight"):
        return np.float32(1 / 3) * values
    return np.float32(2) * values if name.endswith("router.weight") else values
