"""The configurations of the qwen3 golden files, dense and with experts, as the config.json of a
checkpoint."""

from typing import Any


def qwen3(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "max_window_layers": 2,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_sliding_window": False,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


def experts(**changes: Any) -> dict[str, Any]:
    return qwen3(
        **{
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": 96,
            "norm_topk_prob": True,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "output_router_logits": False,
            **changes,
        }
    )


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "plain": qwen3(),
    # Deeper, since a shallow model with a tied random head repeats the last token for ever.
    "tied": qwen3(
        tie_word_embeddings=True, num_hidden_layers=3, num_key_value_heads=1, vocab_size=96
    ),
    # An epsilon large enough to be seen, in the norms of queries and keys too.
    "bias": qwen3(attention_bias=True, rms_norm_eps=1e-2),
    # Layers 2 and 3 see 8 positions.
    "window": qwen3(use_sliding_window=True, sliding_window=8, num_hidden_layers=4),
    "experts": experts(),
    # Weights of the experts are those among all: they sum to less than 1.
    "plain_weights": experts(norm_topk_prob=False, num_experts=5, moe_intermediate_size=32),
    # Layers 0 and 2 are dense by their number, layer 3 as the list says.
    "some_dense": experts(
        decoder_sparse_step=2, mlp_only_layers=[3], num_hidden_layers=4, num_experts_per_tok=1
    ),
    # max_window_layers is there, and not looked at.
    "experts_window": experts(use_sliding_window=True, sliding_window=8),
}
