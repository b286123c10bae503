"""The configurations of the stablelm golden files, as the config.json of a checkpoint."""

from typing import Any


def stablelm(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["StableLmForCausalLM"],
        "model_type": "stablelm",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "layer_norm_eps": 0.01,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25,
        "qk_layernorm": False,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_parallel_residual": False,
        "use_qkv_bias": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": stablelm(),
    # As 12B: both parts side by side, norms of each head.
    "parallel": stablelm(
        num_hidden_layers=3,
        partial_rotary_factor=0.5,
        qk_layernorm=True,
        tie_word_embeddings=True,
        use_parallel_residual=True,
        use_qkv_bias=False,
        vocab_size=96,
    ),
}
