"""The configurations of the olmo2 golden files, as the config.json of a checkpoint."""

from typing import Any


def olmo2(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": olmo2(),
    # As 32B: keys are fewer than queries, and their norm is narrower.
    "gqa": olmo2(num_key_value_heads=2),
    # An epsilon large enough to be seen.
    "epsilon": olmo2(rms_norm_eps=1e-2, num_attention_heads=2, num_key_value_heads=1),
    "bias": olmo2(attention_bias=True),
    # OLMo 3: every fourth layer sees everything, and only its positions are scaled.
    "windows": olmo2(
        architectures=["Olmo3ForCausalLM"],
        model_type="olmo3",
        num_hidden_layers=4,
        sliding_window=8,
        rope_scaling={
            "attention_factor": 1.2,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "rope_type": "yarn",
        },
    ),
    # Both ends of YaRN's blended range lie within the rope.
    "yarn": olmo2(
        architectures=["Olmo3ForCausalLM"],
        model_type="olmo3",
        num_hidden_layers=4,
        sliding_window=8,
        rope_scaling={
            "beta_fast": 0.4,
            "beta_slow": 0.03,
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "rope_type": "yarn",
        },
    ),
    "tied": olmo2(tie_word_embeddings=True, num_hidden_layers=3, vocab_size=96),
}

_ALONE = "transformers gives it to global layers alone; local ones have the default, as released"
# Numbers to which a model that is right does not follow transformers.
UNFOLLOWED = {f"{case}.rope_theta": _ALONE for case in ("windows", "yarn")}
