"""The configurations of the mamba golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def mamba(**changes: Any) -> dict[str, Any]:
    """As Mamba is published for transformers, with the keys that nobody reads."""
    return {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "bos_token_id": 0,
        "conv_kernel": 4,
        "d_inner": 128,
        "d_model": 64,
        "eos_token_id": 0,
        "expand": 2,
        "fused_add_norm": True,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.1,
        "intermediate_size": 128,
        "layer_norm_epsilon": 1e-5,
        "n_layer": 3,
        "num_hidden_layers": 3,
        "pad_token_id": 0,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": True,
        "rms_norm": True,
        "ssm_cfg": {},
        "state_size": 16,
        "time_step_floor": 0.0001,
        "time_step_init_scheme": "random",
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "time_step_rank": 4,
        "time_step_scale": 1.0,
        "torch_dtype": "float32",
        "use_bias": False,
        "use_cache": True,
        "use_conv_bias": True,
        "vocab_size": 64,
        **changes,
    }


PROMPT = 32

CASES: dict[str, dict[str, Any]] = {
    "published": mamba(),
    # A rank by the width, another expansion, biases elsewhere, an epsilon large enough to be seen.
    "biases": mamba(
        conv_kernel=2,
        expand=3,
        intermediate_size=192,
        layer_norm_epsilon=1e-2,
        num_hidden_layers=2,
        tie_word_embeddings=False,
        time_step_rank="auto",
        use_bias=True,
        use_conv_bias=False,
    ),
    # Falcon Mamba: norms of what a token selects, with an epsilon of their own; as it is published,
    # an expansion that counts for nothing beside the number of channels.
    "falcon": mamba(
        architectures=["FalconMambaForCausalLM"],
        model_type="falcon_mamba",
        expand=16,
        mixer_rms_eps=1e-2,
        num_hidden_layers=2,
        tie_word_embeddings=False,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but a layer adds less: it multiplies results of two matrices, and rounding
    shows no more than in layers of other models."""
    values = weights.weight(name, shape)
    if name.endswith("embeddings.weight"):  # tied, each token would follow itself
        return np.float32(1 / 2) * values
    return np.float32(1 / 3) * values if name.endswith("out_proj.weight") else values


UNFOLLOWED = {"*.rescale_prenorm_residual": "transformers scales weights that it has loaded"}
