"""The configurations of the minimax_m2 golden files, as the config.json of a checkpoint."""

from typing import Any


def minimax_m2(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
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
        "head_dim": 32,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 6,
        "rotary_dim": 16,
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "use_routing_bias": True,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    "published": minimax_m2(),
    # All of each head rotated; a tied head, an epsilon large enough to be seen.
    "whole_rope": minimax_m2(
        num_experts_per_tok=3, rms_norm_eps=1e-2, rotary_dim=..., tie_word_embeddings=True
    ),
}
