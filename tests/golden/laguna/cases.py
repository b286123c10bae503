"""The configurations of the laguna golden files, as the config.json of a checkpoint."""

from typing import Any

FULL, LOCAL = "full_attention", "sliding_attention"


def laguna(**changes: Any) -> dict[str, Any]:
    """As Laguna XS.2 is published."""
    config = {
        "architectures": ["LagunaForCausalLM"],
        "model_type": "laguna",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "gating": True,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_types": [FULL, LOCAL, LOCAL],
        "max_position_embeddings": 128,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "moe_apply_router_weight_on_input": False,
        "moe_intermediate_size": 32,
        "moe_routed_scaling_factor": 2.5,
        "num_attention_heads": 2,
        "num_attention_heads_per_layer": [2, 4, 4],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {
            FULL: {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "partial_rotary_factor": 0.5,
                "rope_theta": 100.0,
                "rope_type": "yarn",
            },
            LOCAL: {"partial_rotary_factor": 1.0, "rope_theta": 50.0, "rope_type": "default"},
        },
        "shared_expert_intermediate_size": 64,
        "sliding_window": 8,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    "published": laguna(),
    # As Laguna M.1: all layers see all, gates for each number of a head. Bounded scores, a tied
    # head, experts in the first layer, too.
    "full": laguna(
        gating="per-element",
        layer_types=...,
        mlp_layer_types=["sparse", "dense"],
        moe_router_logit_softcapping=0.7,
        num_attention_heads=4,
        num_attention_heads_per_layer=...,
        num_experts_per_tok=3,
        num_hidden_layers=2,
        num_key_value_heads=1,
        rope_parameters={
            FULL: {
                "attention_factor": 1.2,
                "beta_fast": 2.0,
                "beta_slow": 0.5,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_theta": 100.0,
                "rope_type": "yarn",
            }
        },
        sliding_window=8,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}
