"""The configurations of the bailingmoe2 golden files, as the config.json of a checkpoint."""

from typing import Any


def bailingmoe2(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["BailingMoeV2ForCausalLM"],
        "model_type": "bailing_moe",
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "eos_token_id": 2,
        "first_k_dense_replace": 1,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "max_window_layers": 20,
        "moe_intermediate_size": 32,
        "moe_router_enable_expert_bias": True,
        "moe_shared_expert_intermediate_size": 32,
        "mtp_loss_scaling_factor": 0,
        "n_group": 4,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": 1,
        "output_dropout": 0.0,
        "output_router_logits": False,
        "pad_token_id": 0,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 600000.0,
        "routed_scaling_factor": 2.5,
        "score_function": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 2,
        "torch_dtype": "float32",
        "use_bias": False,
        "use_cache": True,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "use_rmsnorm": True,
        "vocab_size": 64,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    "published": bailingmoe2(),
    # A layer that drafts; wider heads, all of each rotated, an epsilon that is seen, three experts
    # shared by all tokens, another base.
    "drafting": bailingmoe2(
        head_dim=32,
        moe_shared_expert_intermediate_size=...,
        n_group=2,
        num_experts=6,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_key_value_heads=1,
        num_nextn_predict_layers=1,
        num_shared_experts=3,
        partial_rotary_factor=...,
        rms_norm_eps=1e-2,
        rope_theta=10000.0,
        routed_scaling_factor=1.3,
        topk_group=1,
    ),
    # Biases, no norms of queries and keys; one expert, whose weight is its sigmoid; no dense layer,
    # no groups, a tied head, a scaled rope.
    "plain": bailingmoe2(
        first_k_dense_replace=0,
        n_group=1,
        num_experts_per_tok=1,
        num_hidden_layers=2,
        rope_scaling={"rope_type": "linear", "factor": 4.0},
        tie_word_embeddings=True,
        topk_group=1,
        use_bias=True,
        use_qk_norm=False,
        use_qkv_bias=True,
    ),
}


def adjust(model: Any) -> None:
    """Frequencies that transformers 5 has not filled, for it expects that classes do; and no layers
    that draft, whose routers would count with those of the others."""
    net, rotary = model.model, model.model.rotary_emb
    rotary.inv_freq = rotary.original_inv_freq = rotary.rope_init_fn(rotary.config, None)[0]
    if net.num_nextn_predict_layers:
        net.layers = net.layers[: -net.num_nextn_predict_layers]
    net.num_nextn_predict_layers = model.num_nextn_predict_layers = 0
