"""The configurations of the exaone4 golden files, as the config.json of a checkpoint."""

from typing import Any


def exaone4(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Exaone4ForCausalLM"],
        "model_type": "exaone4",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 0.01,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": exaone4(
        layer_types=["full_attention"] * 2,
        rope_scaling={
            "factor": 16.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 32,
            "rope_type": "llama3",
        },
    ),
    # As 32B: three layers of four see a window and rotate.
    "windows": exaone4(
        layer_types=[*["sliding_attention"] * 3, "full_attention"],
        num_hidden_layers=4,
        sliding_window=8,
        sliding_window_pattern="LLLG",
    ),
    "layer_types": exaone4(
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        num_hidden_layers=3,
        num_key_value_heads=1,
        sliding_window=5,
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}
