"""The configurations of the qwen2 golden files, as the config.json of a checkpoint."""

from typing import Any


def qwen2(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "max_window_layers": 2,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "sliding_window": 8,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_sliding_window": False,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    # As published: a window is named, and not used.
    "unused_window": qwen2(),
    # Deeper, since a shallow model with a tied random head repeats the last token for ever.
    "tied": qwen2(
        tie_word_embeddings=True, num_hidden_layers=3, num_key_value_heads=1, vocab_size=96
    ),
    # Layers 2 and 3 see 8 positions. An epsilon large enough to be seen.
    "window": qwen2(use_sliding_window=True, num_hidden_layers=4, rms_norm_eps=1e-2),
    # Layers listed by kind, as transformers 5 writes them.
    "layer_types": qwen2(
        use_sliding_window=True,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    # Neither num_key_value_heads nor rope_theta; 24 is not hidden / heads.
    "odd_head_dim": qwen2(num_key_value_heads=4, head_dim=24, rope_theta=..., intermediate_size=96),
    # As published for long texts: four times as long as in training.
    "yarn": qwen2(
        num_attention_heads=2,
        num_key_value_heads=1,
        rope_scaling={
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "type": "yarn",
        },
    ),
}
