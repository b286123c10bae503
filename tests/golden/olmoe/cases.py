"""The configurations of the olmoe golden files, as the config.json of a checkpoint."""

from typing import Any


def olmoe(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "attention_bias": False,
        "clip_qkv": None,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 32,
        "max_position_embeddings": 128,
        "norm_topk_prob": False,
        "num_attention_heads": 4,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "pad_token_id": 1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    "published": olmoe(),
    # Weights that sum to 1, shared keys, biases, and epsilons large enough to be seen.
    "bias": olmoe(
        attention_bias=True,
        norm_topk_prob=True,
        num_experts_per_tok=3,
        num_key_value_heads=2,
        rms_norm_eps=1e-2,
        tie_word_embeddings=True,
    ),
    "linear_rope": olmoe(
        num_experts=4, rope_scaling={"rope_type": "linear", "factor": 4.0}, rope_theta=1000.0
    ),
}
