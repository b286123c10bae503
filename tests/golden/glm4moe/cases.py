"""The configurations of the glm4moe golden files, as the config.json of a checkpoint."""

from typing import Any


def glm4moe(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_bias": True,
        "eos_token_id": [2],
        "first_k_dense_replace": 1,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.3,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "torch_dtype": "float32",
        "use_qk_norm": False,
        "vocab_size": 64,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    # As GLM 4.5 Air: biases, no norms of queries and keys.
    "air": glm4moe(),
    # As GLM 4.5; the rotated half is the default's, experts are chosen in groups.
    "groups": glm4moe(
        attention_bias=False,
        n_group=4,
        n_routed_experts=8,
        n_shared_experts=2,
        num_experts_per_tok=3,
        partial_rotary_factor=...,
        rms_norm_eps=1e-2,
        topk_group=2,
        use_qk_norm=True,
    ),
    # All of each head rotated, weights that do not sum to the factor.
    "whole_rope": glm4moe(
        first_k_dense_replace=0,
        norm_topk_prob=False,
        num_experts_per_tok=1,
        partial_rotary_factor=1.0,
        routed_scaling_factor=2.5,
        tie_word_embeddings=True,
    ),
}
