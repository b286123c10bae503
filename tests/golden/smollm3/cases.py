"""The configurations of the smollm3 golden files, as the config.json of a checkpoint."""

from typing import Any


def smollm3(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "no_rope_layer_interval": 4,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 0.01,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_sliding_window": False,
        "vocab_size": 96,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": smollm3(no_rope_layers=[1, 1, 1, 0]),
    # Other layers without rotation, biases, an output of its own.
    "untied": smollm3(
        attention_bias=True,
        mlp_bias=True,
        no_rope_layers=[0, 1, 1],
        num_hidden_layers=3,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        vocab_size=64,
    ),
    "interval": smollm3(no_rope_layer_interval=2, num_hidden_layers=3),
}

# Numbers that no case can see.
UNSEEN = {
    "blk.0.attn_k.bias": "without rotation it moves all scores of a query alike",
}
