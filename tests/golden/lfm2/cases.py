"""The configurations of the lfm2 golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def lfm2(**changes: Any) -> dict[str, Any]:
    """As LFM2-1.2B is published, with the keys that nobody reads."""
    config = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "block_auto_adjust_ff_dim": True,
        "block_dim": 64,
        "block_ff_dim": 192,
        "block_ffn_dim_multiplier": 1.0,
        "block_mlp_init_scale": 1.0,
        "block_multiple_of": 32,
        "block_norm_eps": 1e-5,
        "block_out_init_scale": 1.0,
        "block_use_swiglu": True,
        "block_use_xavier_init": True,
        "bos_token_id": 1,
        "conv_L_cache": 3,
        "conv_bias": False,
        "conv_dim": 64,
        "conv_dim_out": 64,
        "conv_use_xavier_init": True,
        "eos_token_id": 7,
        "full_attn_idxs": [2],
        "hidden_size": 64,
        "max_position_embeddings": 128,
        "norm_eps": 1e-5,
        "num_attention_heads": 4,
        "num_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rope_theta": 1000000.0,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_pos_enc": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


def experts(**changes: Any) -> dict[str, Any]:
    """As LFM2-8B-A1B is published: no adjustment of widths, layers listed by kind."""
    return {
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "bos_token_id": 1,
        "conv_L_cache": 3,
        "conv_bias": False,
        "dtype": "float32",
        "eos_token_id": 7,
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_types": ["conv", "full_attention", "conv"],
        "max_position_embeddings": 128,
        "moe_intermediate_size": 32,
        "norm_eps": 1e-5,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_dense_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rope_theta": 1000000.0,
        "routed_scaling_factor": 1.0,
        "use_cache": True,
        "use_expert_bias": True,
        "vocab_size": 64,
        **changes,
    }


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "published": lfm2(),
    # As LFM2.5: widths as they are, layers listed by kind; a longer memory, all with a bias.
    "bias": lfm2(
        block_auto_adjust_ff_dim=False,
        block_ff_dim=...,
        conv_L_cache=4,
        conv_bias=True,
        full_attn_idxs=...,
        intermediate_size=96,
        layer_types=["conv", "full_attention", "conv", "conv"],
    ),
    # A width that is rounded up; an output of its own; an epsilon large enough to be seen.
    "untied": lfm2(
        block_ffn_dim_multiplier=1.3,
        block_multiple_of=64,
        norm_eps=1e-2,
        num_hidden_layers=3,
        num_key_value_heads=1,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    ),
    # A short memory, heads that are not width / heads wide, attention first.
    "two_taps": lfm2(
        conv_L_cache=2, full_attn_idxs=[0, 2], head_dim=32, num_key_value_heads=4, vocab_size=96
    ),
    # Convolutions of nothing but the token's own values.
    "one_tap": lfm2(conv_L_cache=1, conv_bias=True, num_hidden_layers=3, tie_word_embeddings=False),
    "experts": experts(),
    "experts_unbiased": experts(use_expert_bias=False, tie_word_embeddings=False),
    "experts_scaled": experts(
        norm_topk_prob=False, num_dense_layers=2, num_experts_per_tok=1, routed_scaling_factor=2.5
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but routers are rarely near a tie, and their bias does not decide alone. A
    convolution multiplies three results of one matrix: what it adds is smaller, so that rounding
    shows no more than in layers of other models."""
    values = weights.weight(name, shape)
    if name.endswith("conv.out_proj.weight"):
        return np.float32(1 / 2) * values
    if name.endswith("feed_forward.gate.weight"):
        return np.float32(2) * values
    return np.float32(1 / 3) * values if name.endswith("expert_bias") else values


# Numbers that no case can see.
UNSEEN = {
    "biased": "the conversion reads it: the biases are zeros then",
}
