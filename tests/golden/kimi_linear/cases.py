"""The configurations of the kimi_linear golden files, as the config.json of a checkpoint."""

from typing import Any


def kimi(**changes: Any) -> dict[str, Any]:
    """As Kimi Linear is published."""
    config = {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "kv_lora_rank": 32,
        "linear_attn_config": {
            "full_attn_layers": [3],
            "head_dim": 32,
            "kda_layers": [1, 2],
            "num_heads": 2,
            "short_conv_kernel_size": 4,
        },
        "model_max_length": 128,
        "moe_intermediate_size": 32,
        "moe_renormalize": True,
        "num_attention_heads": 2,
        "num_expert_group": 1,
        "num_experts": 6,
        "num_experts_per_token": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "num_shared_experts": 1,
        "pad_token_id": 0,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "rms_norm_eps": 1e-6,
        "routed_scaling_factor": 2.446,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "torch_dtype": "float32",
        "v_head_dim": 32,
        "vocab_size": 64,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    "published": kimi(),
    # Keys as transformers writes them, attention first; groups of experts, latent queries, weights
    # that are shares.
    "latent": kimi(
        first_k_dense_replace=...,
        layer_types=["full_attention", "linear_attention"],
        linear_attn_config=...,
        linear_conv_kernel_dim=3,
        linear_head_dim=16,
        linear_num_heads=4,
        mlp_layer_types=["sparse", "dense"],
        moe_renormalize=False,
        num_attention_heads=4,
        num_expert_group=3,
        num_hidden_layers=2,
        num_key_value_heads=4,
        num_shared_experts=2,
        q_lora_rank=32,
        rms_norm_eps=1e-2,
        topk_group=2,
        vocab_size=96,
    ),
}
