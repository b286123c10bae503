"""The configurations of the rwkv7 golden files, as the config.json of a checkpoint.

transformers has no RWKV-7: `make.py` has the package rwkv compute them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def rwkv7(**changes: Any) -> dict[str, Any]:
    """As checkpoints of flash-linear-attention are published."""
    config = {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "a_low_rank_dim": 32,
        "attn": None,
        "attn_mode": "chunk",
        "bos_token_id": 1,
        "decay_low_rank_dim": 32,
        "eos_token_id": 2,
        "fuse_cross_entropy": True,
        "fuse_norm": False,
        "gate_low_rank_dim": 64,
        "head_dim": 64,
        "hidden_act": "sqrelu",
        "hidden_ratio": 2.0,
        "hidden_size": 64,
        "initializer_range": 0.006,
        "intermediate_size": 128,
        "max_position_embeddings": 2048,
        "norm_bias": True,
        "norm_eps": 1e-5,
        "norm_first": True,
        "num_heads": 1,
        "num_hidden_layers": 3,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "v_low_rank_dim": 32,
        "value_dim": [64] * 3,
        "vocab_size": 64,
    }
    return {**config, **changes}


CASES: dict[str, dict[str, Any]] = {
    "published": rwkv7(),
    # Two heads; ranks that all differ, the width of the feed-forward part by its ratio.
    "heads": rwkv7(
        a_low_rank_dim=32,
        decay_low_rank_dim=64,
        gate_low_rank_dim=96,
        hidden_size=128,
        hidden_ratio=1.2,
        intermediate_size=None,
        num_heads=2,
        num_hidden_layers=2,
        v_low_rank_dim=16,
        value_dim=[128] * 2,
        vocab_size=96,
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but for tensors that are no matrices: mixes of two tokens lie between them,
    and each use of a key is near that of published models."""
    values = weights.uniform(name, shape)
    kind = name.rpartition(".")[2]
    if kind.startswith("x_"):
        return np.float32(0.5) + np.float32(0.5) * values
    if kind in ("k_k", "k_a"):
        return np.float32(0.8) + np.float32(0.2) * values
    if kind == "r_k":
        return np.float32(0.1) * values
    return weights.weight(name, shape)


UNSEEN = {
    "blk.0.time_mix_v*": "the first layer mixes its values with none; llama.cpp needs tensors"
}
