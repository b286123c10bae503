"""The configurations of the hunyuan_moe golden files, as the config.json of a checkpoint."""

from typing import Any


def hunyuan_moe(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["HunYuanMoEV1ForCausalLM"],
        "model_type": "hunyuan_v1_moe",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
        "moe_topk": 2,
        "num_attention_heads": 4,
        "num_experts": 6,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 0.01,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "plain": hunyuan_moe(),
    # As released: numbers by layer, tied, the base of rope stretched by alpha; biases besides.
    "alpha": hunyuan_moe(
        attention_bias=True,
        head_dim=32,
        moe_topk=[3, 3, 3],
        num_hidden_layers=3,
        num_key_value_heads=1,
        rope_scaling={
            "alpha": 30.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "type": "dynamic",
        },
        tie_word_embeddings=True,
        vocab_size=96,
    ),
}

UNSEEN = {"ffn": "no layer has a dense part: experts have their own width, the same number"}
