"""The configurations of the phi3 golden files, as the config.json of a checkpoint."""

from typing import Any


def phi3(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "attention_bias": False,
        "bos_token_id": 1,
        "embd_pdrop": 0.0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "original_max_position_embeddings": 128,
        "pad_token_id": 0,
        "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


def longrope(dims: int) -> dict[str, Any]:
    """Factors of the half of these dims, growing as published ones do."""
    return {
        "long_factor": [round(1 + 0.9 * i, 2) for i in range(dims // 2)],
        "short_factor": [round(1 + 0.05 * i, 2) for i in range(dims // 2)],
        "type": "longrope",
    }


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": phi3(),
    # As mini with 4k, but longer than the window. An epsilon large enough to be seen.
    "window": phi3(sliding_window=8, num_key_value_heads=2, rms_norm_eps=1e-2),
    # As medium with 128k: texts beyond the original context, so that the long factors count.
    "long": phi3(
        num_key_value_heads=1, original_max_position_embeddings=16, rope_scaling=longrope(16)
    ),
    # The context is the original one, so that the short ones do.
    "short": phi3(rope_scaling=longrope(16)),
    # As Phi 4 mini: tied, three quarters of each head rotated. Deeper, since a shallow model with a
    # tied random head repeats the last token for ever.
    "partial": phi3(
        num_hidden_layers=3,
        num_key_value_heads=2,
        original_max_position_embeddings=16,
        partial_rotary_factor=0.75,
        rope_scaling=longrope(12),
        tie_word_embeddings=True,
        vocab_size=96,
    ),
    "partial_plain": phi3(partial_rotary_factor=0.5),
}

# Numbers that no case can see.
UNSEEN = {
    "value_dim": "other programs ask for it; the tensors tell the same",
    "original_context": "it chooses factors by the loaded context, far from it here",
}
