"""The configurations of the qwen35 golden files, dense and with experts, as the config.json of a
checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def qwen35(**changes: Any) -> dict[str, Any]:
    """The text part of Qwen3.5 as it is published, with the keys that nobody reads. A rope of so
    few pairs has shorter sections."""
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": 1,
        "dtype": "float32",
        "eos_token_id": 2,
        "full_attention_interval": 4,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 128,
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


def experts(**changes: Any) -> dict[str, Any]:
    return qwen35(
        **{
            "architectures": ["Qwen3_5MoeForCausalLM"],
            "model_type": "qwen3_5_moe_text",
            "full_attention_interval": 2,
            "intermediate_size": ...,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_only_layers": ...,
            "moe_intermediate_size": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 2,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": 64,
            "tie_word_embeddings": False,
            **changes,
        }
    )


PROMPT = 32
MARGIN = 0.15  # of the top two logits: activations are rounded, too

CASES: dict[str, dict[str, Any]] = {
    "published": qwen35(),
    # Layers in an order of their own, one head of keys for all, a shorter memory, an epsilon large
    # enough to be seen, and biases.
    "bias": qwen35(
        attention_bias=True,
        full_attention_interval=...,
        layer_types=["full_attention", "linear_attention", "linear_attention"],
        linear_conv_kernel_dim=2,
        linear_num_key_heads=1,
        num_hidden_layers=3,
        rms_norm_eps=1e-2,
        tie_word_embeddings=False,
    ),
    # Keys have as many heads as values; layers by interval; all of a head rotates.
    "interval": qwen35(
        full_attention_interval=2,
        layer_types=...,
        linear_key_head_dim=16,
        linear_num_key_heads=4,
        linear_value_head_dim=16,
        num_key_value_heads=1,
        partial_rotary_factor=...,
        rope_parameters={
            "mrope_section": [6, 5, 5],
            "partial_rotary_factor": 1.0,
            "rope_theta": 10000.0,
            "rope_type": "default",
        },
        vocab_size=96,
    ),
    # Pairs that no section covers turn fast enough to be seen.
    "uncovered_pairs": qwen35(
        layer_types=["full_attention"] * 2,
        num_hidden_layers=2,
        partial_rotary_factor=...,
        rope_parameters={
            "mrope_interleaved": True,
            "mrope_section": [3, 2, 1],
            "partial_rotary_factor": 0.5,
            "rope_theta": 100.0,
            "rope_type": "default",
        },
        tie_word_embeddings=False,
    ),
    # The usual sections, which are wider than the rope of such a small head.
    "wide_sections": qwen35(
        layer_types=["full_attention"] * 2,
        num_hidden_layers=2,
        partial_rotary_factor=...,
        rope_parameters={
            "mrope_interleaved": True,
            "mrope_section": [24, 20, 20],
            "partial_rotary_factor": 0.125,
            "rope_theta": 100.0,
            "rope_type": "default",
        },
        tie_word_embeddings=False,
    ),
    "experts": experts(),
    "experts_groups": experts(
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        num_experts=3,
        num_experts_per_tok=1,
        layer_types=["full_attention", "linear_attention"],
        shared_expert_intermediate_size=32,
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


# Numbers that no case can see.
UNSEEN = {
    "video_*_pixels": "goldens are given prepared pixels; the preparation is tested apart",
    "sections": "text has one position for all; qwen3vl/qwen35 has images",
    "interval": "read where a file lacks the list of layers",
}
