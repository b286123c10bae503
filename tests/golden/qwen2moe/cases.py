"""The configurations of the qwen2moe golden files, as the config.json of a checkpoint."""

from typing import Any


def qwen2moe(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "bos_token_id": 1,
        "decoder_sparse_step": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "max_window_layers": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": False,
        "num_attention_heads": 4,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "shared_expert_intermediate_size": 96,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_sliding_window": False,
        "vocab_size": 64,
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    "published": qwen2moe(),
    # Weights that sum to 1, dense layers by their number and by the list, no biases.
    "some_dense": qwen2moe(
        decoder_sparse_step=2,
        mlp_only_layers=[3],
        norm_topk_prob=True,
        num_hidden_layers=4,
        num_experts_per_tok=1,
        qkv_bias=False,
        rms_norm_eps=1e-2,
        tie_word_embeddings=True,
    ),
    # The first of two layers sees 8 positions.
    "window": qwen2moe(
        max_window_layers=1, num_experts_per_tok=2, sliding_window=8, use_sliding_window=True
    ),
}
