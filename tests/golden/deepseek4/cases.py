"""The configurations of the deepseek4 golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights

LOCAL, SPARSE, HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 4,
    "original_max_position_embeddings": 2048,
    "type": "yarn",
}


def v4(**changes: Any) -> dict[str, Any]:
    """As DeepSeek V4 is published."""
    config = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "attention_bias": False,
        "bos_token_id": 0,
        "compress_ratios": [0, 4, 128],
        "compress_rope_theta": 160.0,
        "eos_token_id": 1,
        "hc_eps": 1e-6,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "head_dim": 64,  # llama.cpp rotates 64 numbers of a head at once
        "hidden_act": "silu",
        "hidden_size": 64,
        "index_head_dim": 64,
        "index_n_heads": 12,
        "index_topk": 6,  # of 8 entries: rounded weights choose others where scores are near
        "max_position_embeddings": 128,
        "moe_intermediate_size": 32,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hash_layers": 1,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 1,
        "o_groups": 2,
        "o_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_scaling": YARN,
        "rope_theta": 100.0,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "sliding_window": 8,
        "swiglu_limit": 1.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


CASES: dict[str, dict[str, Any]] = {
    "published": v4(),
    # Keys as transformers writes them, rates that llama.cpp has not, another magnitude of YaRN, a
    # window shorter than entries, ends of norms that are seen.
    "rates": v4(
        compress_rates={SPARSE: 3, HEAVY: 10},
        compress_ratios=...,
        hc_eps=1e-2,
        hc_mult=3,
        hc_sinkhorn_iters=3,
        head_dim=32,
        hidden_act="gelu",
        index_head_dim=16,
        index_n_heads=16,
        index_topk=8,
        layer_types=[LOCAL, SPARSE, HEAVY],
        mlp_layer_types=["moe", "hash_moe", "moe"],
        num_attention_heads=6,
        num_experts_per_tok=3,
        num_hash_layers=...,
        num_hidden_layers=3,
        o_groups=3,
        o_lora_rank=64,
        partial_rotary_factor=0.5,
        qk_rope_head_dim=...,
        rms_norm_eps=1e-2,
        rope_parameters={
            "main": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5},
            "compress": {
                **YARN,
                "beta_slow": 2,
                "rope_type": "yarn",
                "rope_theta": 30.0,
                "partial_rotary_factor": 0.5,
            },
        },
        rope_scaling=...,
        routed_scaling_factor=0.7,
        sliding_window=5,
        swiglu_limit=0.5,
    ),
    # One stream, biases of the shared expert, a tied head.
    "linear": v4(
        compress_ratios=[0, 4],
        hc_mult=1,
        mlp_bias=True,
        num_hash_layers=0,
        num_hidden_layers=2,
        rope_scaling={"type": "linear", "factor": 2.0},
        swiglu_limit=0.8,
        tie_word_embeddings=True,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Tables of experts by token have different ones for each, by the common rule's numbers."""
    values = weights.weight(name, shape)
    if not name.endswith("tid2eid"):
        return values
    experts = CASES["published"]["n_routed_experts"]
    first = np.abs(values[:, :1] * 1e6) % experts
    return np.floor(first + np.arange(shape[1])) % experts
