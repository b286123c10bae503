"""The configurations of the nemotron_h golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def nemotron(**changes: Any) -> dict[str, Any]:
    """As Nemotron-H-8B is published, with the keys that nobody reads."""
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_head_dim": 32,
        "bos_token_id": 1,
        "chunk_size": 8,
        "conv_kernel": 4,
        "eos_token_id": 2,
        "expand": 2,
        "head_dim": 32,
        "hidden_dropout": 0.0,
        "hidden_size": 64,
        "hybrid_override_pattern": "M-M*-",
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "layer_norm_epsilon": 1e-5,
        "mamba_head_dim": 16,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 6,
        "mamba_proj_bias": False,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "n_groups": 2,
        "num_attention_heads": 4,
        "num_hidden_layers": 5,
        "num_key_value_heads": 2,
        "num_logits_to_keep": 1,
        "pad_token_id": 0,
        "rescale_prenorm_residual": True,
        "residual_in_fp32": False,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "ssm_state_size": 16,
        "tie_word_embeddings": False,
        "time_step_floor": 0.0001,
        "time_step_limit": [0.0, float("inf")],
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "torch_dtype": "float32",
        "use_bias": False,
        "use_cache": True,
        "use_conv_bias": True,
        "use_mamba_kernels": True,
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "published": nemotron(),
    # Layers by a list, which begins with attention; biases, one group, an epsilon that is seen.
    "biases": nemotron(
        conv_kernel=2,
        hybrid_override_pattern=...,
        layer_norm_epsilon=1e-2,
        layers_block_type=["attention", "mlp", "mamba"],
        mamba_proj_bias=True,
        mlp_bias=True,
        n_groups=1,
        num_hidden_layers=3,
        num_key_value_heads=1,
        use_bias=True,
        use_conv_bias=False,
        vocab_size=96,
    ),
}


ROUTED = {
    "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5,
    "topk_group": 1,
}
CASES |= {
    # As Nemotron 3 Nano is published.
    "experts": nemotron(hybrid_override_pattern="ME*E", num_hidden_layers=4, **ROUTED),
    # As Nemotron 3 Super, whose experts see fewer numbers; groups, weights that are shares,
    # biases, another activation.
    "latent": nemotron(
        hybrid_override_pattern="*EM",
        layer_norm_epsilon=1e-2,
        num_hidden_layers=3,
        **{
            **ROUTED,
            "mlp_bias": True,
            "mlp_hidden_act": "silu",
            "moe_latent_size": 32,
            "n_group": 3,
            "norm_topk_prob": False,
            "topk_group": 2,
        },
    ),
    # Experts beside a feed-forward part.
    "mixed": nemotron(hybrid_override_pattern="M-E", num_hidden_layers=3, **ROUTED),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but Mamba adds less: it multiplies results of one matrix, and rounding
    shows no more than in layers of other models."""
    values = weights.weight(name, shape)
    return np.float32(1 / 3) * values if name.endswith("out_proj.weight") else values


# Steps of a published model are longer.
UNFOLLOWED = {
    "*.time_step_min": "transformers limits steps by it in prompts, and not token by token"
}
