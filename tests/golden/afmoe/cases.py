"""The configurations of the afmoe golden files, as the config.json of a checkpoint."""

from typing import Any


def afmoe(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["AfmoeForCausalLM"],
        "model_type": "afmoe",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
        "global_attn_every_n_layers": 4,
        "head_dim": 32,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
        "moe_intermediate_size": 32,
        "mup_enabled": True,
        "num_dense_layers": 1,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_shared_experts": 1,
        "route_norm": True,
        "route_scale": 2.8,
        "score_func": "sigmoid",
        "sliding_window": 8,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    "published": afmoe(),
    # Plain embeddings, every other layer by the number; biases, a tied head.
    "plain": afmoe(
        attention_bias=True,
        global_attn_every_n_layers=2,
        layer_types=...,
        mup_enabled=False,
        num_dense_layers=0,
        num_experts_per_tok=3,
        num_hidden_layers=2,
        num_shared_experts=2,
        rms_norm_eps=1e-2,
        tie_word_embeddings=True,
    ),
}
