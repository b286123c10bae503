"""The configurations of the qwen3next golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def qwen3next(**changes: Any) -> dict[str, Any]:
    """As Qwen3-Next-80B-A3B is published, with the keys that nobody reads."""
    config = {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "decoder_sparse_step": 1,
        "eos_token_id": 2,
        "full_attention_interval": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "max_position_embeddings": 128,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "output_router_logits": False,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 64,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "published": qwen3next(),
    # A layer without experts, weights of experts that are no shares, layers in an order of their
    # own; three heads of values for each of keys, biases, an epsilon that is seen.
    "some_dense": qwen3next(
        attention_bias=True,
        full_attention_interval=...,
        layer_types=["full_attention", "linear_attention"],
        linear_conv_kernel_dim=2,
        linear_num_value_heads=6,
        mlp_only_layers=[1],
        norm_topk_prob=False,
        num_experts=3,
        partial_rotary_factor=0.5,
        rms_norm_eps=1e-2,
        rope_theta=100.0,
        vocab_size=96,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but most norms are centred at zero, and routers are rarely near a tie. A
    delta net multiplies results of matrices: what it adds is smaller, so that rounding shows no
    more than in layers of other models."""
    values = weights.weight(name, shape)
    if name.endswith("linear_attn.out_proj.weight"):
        return np.float32(1 / 3) * values
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return values - np.float32(1)
    return np.float32(2) * values if name.endswith("mlp.gate.weight") else values


UNSEEN = {"interval": "read where a file lacks the list of layers"}
