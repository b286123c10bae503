"""The configurations of the exaone_moe golden files, as the config.json of a checkpoint."""

from typing import Any


def exaone_moe(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["ExaoneMoeForCausalLM"],
        "model_type": "exaone_moe",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
        "first_k_dense_replace": 1,
        "head_dim": 32,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "moe_intermediate_size": 32,
        "n_group": 1,
        "norm_topk_prob": True,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "num_nextn_predict_layers": 1,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "sliding_window": 8,
        "sliding_window_pattern": "LLG",
        "topk_group": 1,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    "published": exaone_moe(),
    # Every other layer local, by a number; two of four groups.
    "groups": exaone_moe(
        first_k_dense_replace=2,
        layer_types=...,
        mlp_layer_types=...,
        n_group=4,
        norm_topk_prob=False,
        num_experts=8,
        num_experts_per_tok=3,
        num_shared_experts=2,
        rms_norm_eps=1e-2,
        sliding_window_pattern=2,
        tie_word_embeddings=True,
        topk_group=2,
    ),
}
