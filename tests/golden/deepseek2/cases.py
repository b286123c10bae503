"""The configurations of the deepseek2 golden files, as the config.json of a checkpoint: DeepSeek V2
and V3, GLM 4.7 Flash."""

from typing import Any


def _latent(**changes: Any) -> dict[str, Any]:
    config = {
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "kv_lora_rank": 32,
        "max_position_embeddings": 128,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "v_head_dim": 32,
        "vocab_size": 64,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


def v2(**changes: Any) -> dict[str, Any]:
    return _latent(
        **{
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "first_k_dense_replace": 1,
            "n_group": 1,
            "norm_topk_prob": False,
            "q_lora_rank": None,
            "routed_scaling_factor": 1.0,
            "topk_group": 1,
            "topk_method": "greedy",
            **changes,
        }
    )


def v3(**changes: Any) -> dict[str, Any]:
    return _latent(
        **{
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "first_k_dense_replace": 1,
            "n_group": 4,
            "norm_topk_prob": True,
            "num_nextn_predict_layers": 1,
            "q_lora_rank": 48,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "topk_group": 2,
            "topk_method": "noaux_tc",
            **changes,
        }
    )


def glm(**changes: Any) -> dict[str, Any]:
    return _latent(
        **{
            "architectures": ["Glm4MoeLiteForCausalLM"],
            "model_type": "glm4_moe_lite",
            "mlp_layer_types": ["dense", "sparse"],
            "n_group": 1,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "q_lora_rank": 48,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "routed_scaling_factor": 1.8,
            "topk_group": 1,
            **changes,
        }
    )


def yarn(**changes: Any) -> dict[str, Any]:
    """DeepSeek's scaling, whose magnitude counts for scores, too."""
    return {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 2048,
        "type": "yarn",
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    # As DeepSeek V2 Lite: queries by one matrix, no groups; a plain rope.
    "lite": v2(),
    # As DeepSeek V2: the best groups by their best expert. Two scales that differ, biases.
    "v2_groups": v2(
        attention_bias=True,
        n_group=4,
        num_experts_per_tok=3,
        q_lora_rank=48,
        rms_norm_eps=1e-2,
        rope_scaling=yarn(beta_slow=2, mscale=0.7, mscale_all_dim=1.3),
        rope_theta=100.0,
        routed_scaling_factor=1.6,
        topk_group=2,
        topk_method="group_limited_greedy",
    ),
    # As DeepSeek V3: the best groups by their two best experts.
    "v3": v3(rope_scaling=yarn(), rope_theta=100.0),
    # Weights that do not sum to the factor, no dense layer, a tied head.
    "v3_plain": v3(
        first_k_dense_replace=0,
        n_group=2,
        norm_topk_prob=False,
        q_lora_rank=None,
        rope_scaling=yarn(mscale=...),
        rope_theta=100.0,
        tie_word_embeddings=True,
        topk_group=1,
        v_head_dim=16,
    ),
    "glm": glm(),
    # As models without experts.
    "dense": v3(
        first_k_dense_replace=2, num_nextn_predict_layers=0, q_lora_rank=None, rope_scaling=yarn()
    ),
}
for config in CASES.values():
    if scaling := config.get("rope_scaling"):
        config["rope_scaling"] = {k: v for k, v in scaling.items() if v is not ...}
