"""The configurations of the gpt_oss golden files, as the config.json of a checkpoint.

The experts' weights are numbers that MXFP4 can hold, made from blocks and scales: `packed` gives
those, as a published checkpoint has them. Some biases are large, so that the limits of the SwiGLU
are reached.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights

NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # and their negatives


def gpt_oss(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000.0,
        "sliding_window": 8,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT = 24

CASES: dict[str, dict[str, Any]] = {
    "released": gpt_oss(),
    # Ends of the blended range that are rounded, betas and a magnitude of its own.
    "rounded_yarn": gpt_oss(
        rope_scaling={
            "attention_factor": 1.25,
            "beta_fast": 1.2,
            "beta_slow": 0.1,
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "rope_type": "yarn",
        },
        rms_norm_eps=1e-2,
    ),
    # The first layer sees everything; one expert a token; no biases in attention.
    "other_layers": gpt_oss(
        attention_bias=False,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        num_experts_per_tok=1,
        num_hidden_layers=3,
        num_key_value_heads=1,
    ),
}


def packed(name: str, shape: tuple[int, ...]) -> dict[str, NDArray[np.uint8]]:
    """The experts' weights `name` [experts, in, out] as blocks and scales."""
    experts, width, rows = shape
    blocks, scales = (experts, rows, width // 32, 16), (experts, rows, width // 32)
    return {
        f"{name}_blocks": bytes_of(f"{name}_blocks", blocks),
        # 2⁻⁶, 2⁻⁵ or 2⁻⁴
        f"{name}_scales": 121 + bytes_of(f"{name}_scales", scales) % 3,
    }


def bytes_of(name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return ((weights.uniform(name, shape) + 1) * 128).astype(np.uint8)


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, but for the experts', and routers that are rarely near a tie."""
    if name.endswith("router.weight"):
        return np.float32(2) * weights.weight(name, shape)
    if name.endswith("gate_up_proj_bias"):
        return np.float32(9) * weights.uniform(name, shape) ** 9
    if not name.endswith(("gate_up_proj", "down_proj")):
        return weights.weight(name, shape)
    blocks, scales = packed(name, shape).values()
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    signs = np.where(codes < 8, np.float32(1), np.float32(-1))
    numbers = signs * NUMBERS[codes & 7]
    values = np.ldexp(numbers, scales[..., None].astype(np.int32) - 127)
    return np.ascontiguousarray(values.reshape(*scales.shape[:2], -1).swapaxes(1, 2))


# Numbers that no case can see.
UNSEEN = {
    "blk.2.ffn_gate_inp.bias": "one expert a token: its weight is 1, and no choice is near",
}
