"""The configurations of the dots1 golden files, as the config.json of a checkpoint."""

from typing import Any


def dots1(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Dots1ForCausalLM"],
        "model_type": "dots1",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "head_dim": 32,
        "max_window_layers": 62,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "n_routed_experts": 6,
        "n_shared_experts": 2,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 4,
        "routed_scaling_factor": 2.5,
        "sliding_window": None,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    "published": dots1(),
    # Two of four groups; shared keys, an epsilon large enough to be seen.
    "groups": dots1(
        n_group=4,
        n_routed_experts=8,
        n_shared_experts=1,
        norm_topk_prob=False,
        num_experts_per_tok=3,
        num_key_value_heads=2,
        rms_norm_eps=1e-2,
        topk_group=2,
    ),
    # The second layer sees 8 positions; biases, a tied head, no dense layer.
    "window": dots1(
        attention_bias=True,
        first_k_dense_replace=0,
        max_window_layers=1,
        num_experts_per_tok=1,
        sliding_window=8,
        tie_word_embeddings=True,
    ),
}
