"""The tiny llama and Mixtral models of the goldens, as the config.json a checkpoint would have.

The spelling is the classical one of files in the wild: `rope_theta` and `rope_scaling` at the top.
Transformers 5 reads it, and writes one dictionary instead, with the keys of `rope_scaling` in it:
`"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", ...}`. Each golden holds that
form too, as `saved_config`.

hidden, ffn and heads * head_dim are multiples of 32, so that every matrix has whole Q8_0 blocks in
its rows.
"""

from typing import Any


def llama(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
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
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT = 32  # tokens, unless LENGTHS says otherwise
LENGTHS = {"llama3_rope": 40}  # longer than original_max_position_embeddings

CASES: dict[str, dict[str, Any]] = {
    "plain_gqa": llama(),
    # As the first llama files: neither rope_theta nor num_key_value_heads nor rope_scaling.
    "mha": llama(
        intermediate_size=96,
        rms_norm_eps=1e-6,
        rope_theta=...,
        rope_scaling=...,
        num_key_value_heads=...,
    ),
    # Deeper, since a shallow model with a tied random head repeats the last token for ever.
    "tied": llama(
        tie_word_embeddings=True, num_hidden_layers=3, num_key_value_heads=1, vocab_size=96
    ),
    # head_dim 32, 32 original positions: one frequency kept, one smoothed, the rest divided by 8.
    "llama3_rope": llama(
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        rope_theta=500000.0,
        rope_scaling={
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 32,
            "rope_type": "llama3",
        },
    ),
    # transformers 4.4x wrote `type` beside `rope_type`; older files have `type` alone.
    "linear_rope": llama(rope_scaling={"factor": 4.0, "rope_type": "linear", "type": "linear"}),
    # head_dim 32, 24 original positions: of 16 pairs some are kept, some blended, the rest divided.
    "yarn": llama(
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        rope_scaling={
            "beta_fast": 2.0,
            "factor": 4.0,
            "original_max_position_embeddings": 24,
            "rope_type": "yarn",
        },
    ),
    # As DeepSeek: a magnitude of two scales, ends of the blended range that are not rounded.
    "yarn_scales": llama(
        rope_scaling={
            "factor": 8.0,
            "mscale": 0.5,
            "mscale_all_dim": 2.0,
            "original_max_position_embeddings": 16,
            "rope_type": "yarn",
            "truncate": False,
        },
    ),
    # Both ends of the blended range lie between two pairs, so that rounding them would show.
    "yarn_ends": llama(
        max_position_embeddings=32768,
        rope_scaling={
            "beta_fast": 2.0,
            "beta_slow": 0.25,
            "factor": 8.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
    ),
    # The prompt is longer than the original context, so that the long factors count.
    "longrope": llama(
        rope_scaling={
            "long_factor": [1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 7.5, 8.0],
            "original_max_position_embeddings": 16,
            "rope_type": "longrope",
            "short_factor": [1.0, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3],
        },
    ),
    # The context is the original one, so that the short factors count.
    "short_longrope": llama(
        rope_scaling={
            "long_factor": [1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 7.5, 8.0],
            "original_max_position_embeddings": 128,
            "rope_type": "longrope",
            "short_factor": [1.0, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3],
        },
    ),
    "attention_bias": llama(attention_bias=True, mlp_bias=False),
    # An epsilon large enough to be seen: 1e-5 and 1e-6 change the logits by less than any bound.
    "mlp_bias": llama(attention_bias=False, mlp_bias=True, rms_norm_eps=1e-2),
    # 24 is not hidden / heads = 16; the heads together are 96 wide.
    "odd_head_dim": llama(head_dim=24, intermediate_size=96, num_hidden_layers=3),
    "experts": llama(
        architectures=["MixtralForCausalLM"],
        model_type="mixtral",
        intermediate_size=96,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=False,
        rope_theta=1000000.0,
        rope_scaling=...,
        sliding_window=None,
    ),
}
