"""The configurations of the cohere2 golden files, as the config.json of a checkpoint."""

from typing import Any


def cohere2(**changes: Any) -> dict[str, Any]:
    """As Command R7B is published, with the keys that nobody reads."""
    config = {
        "architectures": ["Cohere2ForCausalLM"],
        "model_type": "cohere2",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 5,
        "cache_implementation": "hybrid",
        "eos_token_id": 6,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "layer_norm_eps": 1e-5,
        "layer_switch": 4,
        "logit_scale": 0.25,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "order_of_interleaved_layers": "local_attn_first",
        "pad_token_id": 0,
        "position_embedding_type": "rope_gptj",
        "rope_scaling": None,
        "rope_theta": 50000,
        "rotary_pct": 1.0,
        "sliding_window": 8,
        "sliding_window_pattern": 4,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()
MARGIN = 0.025  # logits are scaled

CASES: dict[str, dict[str, Any]] = {
    "published": cohere2(),
    # Layers listed by kind, as transformers 5 writes them; a last layer that is local, biases.
    "layer_types": cohere2(
        attention_bias=True,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        num_hidden_layers=3,
        num_key_value_heads=4,
        sliding_window_pattern=...,
    ),
    # An output of its own; an epsilon large enough to be seen; another activation.
    "untied": cohere2(
        hidden_act="gelu",
        layer_norm_eps=1e-2,
        num_hidden_layers=3,
        num_key_value_heads=1,
        rope_theta=10000,
        sliding_window_pattern=2,
        tie_word_embeddings=False,
        vocab_size=96,
    ),
    "linear_rope": cohere2(
        num_hidden_layers=2,
        rope_scaling={"type": "linear", "factor": 4.0},
        sliding_window=5,
        sliding_window_pattern=2,
    ),
}

# Numbers that no case can see.
UNSEEN = {
    "blk.0.attn_k.bias": "without rotation it moves all scores of a query alike",
}
