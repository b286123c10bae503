"""The configurations of the gemma golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def gemma(**changes: Any) -> dict[str, Any]:
    """As Gemma 2B is published, with "gelu" for its tanh form; its epsilon large enough to be
    seen."""
    config = {
        "architectures": ["GemmaForCausalLM"],
        "model_type": "gemma",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "head_dim": 32,
        "hidden_act": "gelu",
        "hidden_activation": None,
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-2,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 96,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()

CASES: dict[str, dict[str, Any]] = {
    "published": gemma(),
    # An output of its own, biases, another activation, keys of each head.
    "untied": gemma(
        attention_bias=True,
        head_dim=16,
        hidden_act="silu",
        num_hidden_layers=2,
        num_key_value_heads=4,
        tie_word_embeddings=False,
        vocab_size=64,
    ),
}
# ggml's tanh GELU reads a table in F16, which alone is 1e-8 to 2e-7.
BOUNDS = {"published": 1e-6}


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but norms that multiply by 1 + weight have weights around 0, and embeddings,
    which are multiplied by sqrt(hidden), are smaller: a tied head would repeat the last token. The
    last norm makes up for that in the logits."""
    values = weights.weight(name, shape)
    if name.endswith("embed_tokens.weight"):
        return np.float32(1 / 8) * values
    if name.endswith("model.norm.weight"):
        return np.float32(4) * values
    return values - np.float32(1) if "norm" in name else values
