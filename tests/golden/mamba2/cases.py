"""The configurations of the mamba2 golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def mamba2(**changes: Any) -> dict[str, Any]:
    """As Mamba-Codestral is published, with the keys that nobody reads."""
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "bos_token_id": 1,
        "chunk_size": 8,
        "conv_kernel": 4,
        "eos_token_id": 2,
        "expand": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.1,
        "layer_norm_epsilon": 1e-5,
        "n_groups": 2,
        "num_heads": 8,
        "num_hidden_layers": 3,
        "pad_token_id": 0,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": True,
        "rms_norm": True,
        "state_size": 16,
        "tie_word_embeddings": False,
        "time_step_floor": 0.0001,
        "time_step_limit": [0.0, float("inf")],
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "time_step_rank": 4,
        "torch_dtype": "float32",
        "use_bias": False,
        "use_cache": True,
        "use_conv_bias": True,
        "vocab_size": 64,
        **changes,
    }


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "published": mamba2(),
    # One group, a short memory, heads wider than the state, biases elsewhere, an epsilon large
    # enough to be seen.
    "biases": mamba2(
        conv_kernel=2,
        head_dim=32,
        layer_norm_epsilon=1e-2,
        n_groups=1,
        num_heads=4,
        num_hidden_layers=4,
        tie_word_embeddings=True,
        use_bias=True,
        use_conv_bias=False,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but a layer adds less: it multiplies results of one matrix, and rounding
    shows no more than in layers of other models."""
    values = weights.weight(name, shape)
    if name.endswith("embeddings.weight"):  # tied, each token would follow itself
        return np.float32(1 / 2) * values
    return np.float32(1 / 3) * values if name.endswith("out_proj.weight") else values


UNFOLLOWED = {"*.rescale_prenorm_residual": "transformers scales weights that it has loaded"}
