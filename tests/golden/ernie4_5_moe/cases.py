"""The configurations of the ernie4_5_moe golden files, as the config.json of a checkpoint."""

from typing import Any


def ernie4_5_moe(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
        "moe_intermediate_size": 32,
        "moe_k": 2,
        "moe_layer_end_index": 1,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_experts": 6,
        "moe_num_shared_experts": 2,
        "moe_use_aux_free": True,
        "num_key_value_heads": 2,
        "use_bias": False,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    "published": ernie4_5_moe(tie_word_embeddings=True),
    # No shared experts; every other layer has experts, the last one has none; biases.
    "sparse": ernie4_5_moe(
        head_dim=32,
        moe_k=3,
        moe_layer_end_index=3,
        moe_layer_interval=2,
        moe_layer_start_index=0,
        moe_num_shared_experts=0,
        num_hidden_layers=5,
        rms_norm_eps=1e-2,
        use_bias=True,
    ),
}
