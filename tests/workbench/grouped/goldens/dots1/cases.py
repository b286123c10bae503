"""dots.llm1 with four groups of two experts, of which two groups are left out."""

CASES = {
    "groups": {
        "architectures": ["Dots1ForCausalLM"],
        "model_type": "dots1",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "first_k_dense_replace": 1,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 64,
        "layer_types": ["full_attention"] * 3,
        "max_position_embeddings": 64,
        "moe_intermediate_size": 32,
        "n_group": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-3,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.5,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "topk_group": 2,
        "vocab_size": 64,
    }
}
