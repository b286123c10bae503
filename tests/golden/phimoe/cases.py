"""The configurations of the phimoe golden files, as the config.json of a checkpoint."""

from typing import Any


def phimoe(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["PhimoeForCausalLM"],
        "model_type": "phimoe",
        "attention_bias": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "input_jitter_noise": 0.01,
        "intermediate_size": 48,
        "lm_head_bias": True,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 6,
        "original_max_position_embeddings": 128,
        "rms_norm_eps": 0.01,
        "rope_scaling": {
            "long_factor": [round(1 + 0.9 * i, 2) for i in range(8)],
            "long_mscale": 1.24,
            "original_max_position_embeddings": 128,
            "short_factor": [round(1 + 0.05 * i, 2) for i in range(8)],
            "short_mscale": 1.24,
            "type": "longrope",
        },
        "rope_theta": 10000.0,
        "router_jitter_noise": 0.2,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


SCALING = phimoe()["rope_scaling"]

PROMPT = 32
# An expert that is near to the best counts at once: rounding must not move one across.
LENGTHS = {"published": 14}

CASES: dict[str, dict[str, Any]] = {
    # As published: biases, LongRoPE, whose short factors count.
    "published": phimoe(num_hidden_layers=1, router_jitter_noise=0.3),
    # Another magnitude; all experts are near to the best.
    "near": phimoe(
        rope_scaling=SCALING | {"short_mscale": 1.1, "long_mscale": 1.1},
        router_jitter_noise=1.5,
    ),
    # No biases, no scaling, a window, a tied head; all experts are near again.
    "window": phimoe(
        attention_bias=False,
        lm_head_bias=False,
        num_key_value_heads=1,
        num_local_experts=4,
        original_max_position_embeddings=...,
        rope_scaling=None,
        router_jitter_noise=1.2,
        sliding_window=8,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}

UNSEEN = {
    "original_context": "it chooses factors by the loaded context, far from it here",
    "rope_factors_long.weight": "transformers takes the short ones for texts of any length",
}
