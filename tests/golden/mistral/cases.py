"""The configurations of the mistral golden files, as the config.json of a checkpoint."""

from typing import Any


def mistral(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "sliding_window": 8,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    # As the first version: all layers see a window.
    "window": mistral(num_hidden_layers=3),
    # As from the second version on. An epsilon large enough to be seen.
    "no_window": mistral(sliding_window=None, rope_theta=1000000.0, rms_norm_eps=1e-2),
    # Heads narrower than hidden / heads, as in Nemo.
    "head_dim": mistral(head_dim=8, num_key_value_heads=1, sliding_window=12),
    "tied": mistral(
        tie_word_embeddings=True, num_hidden_layers=3, num_key_value_heads=4, vocab_size=96
    ),
}
