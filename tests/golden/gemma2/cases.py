"""The configurations of the gemma2 golden files, as the config.json of a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def gemma2(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "head_dim": 32,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "query_pre_attn_scalar": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": 64,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}  # ... leaves a key out


PROMPT, LENGTHS = 32, dict[str, int]()
MARGIN = 0.2  # logits are larger than llama's, and layers with more norms round more

CASES: dict[str, dict[str, Any]] = {
    "published": gemma2(),
    # Caps low enough to flatten scores and logits that are nowhere near 50 and 30. As in 27B
    # queries are scaled by 1/sqrt(hidden / heads), which is not 1/sqrt(head_dim).
    "low_caps": gemma2(
        attn_logit_softcapping=1.0, final_logit_softcapping=6.0, query_pre_attn_scalar=16
    ),
    # An epsilon large enough to be seen.
    "no_caps": gemma2(attn_logit_softcapping=None, final_logit_softcapping=None, rms_norm_eps=1e-2),
    # Layers listed by kind, as transformers 5 writes them; an output of its own, biases.
    "untied": gemma2(
        attention_bias=True,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    ),
}


# ggml's tanh GELU reads a table in F16, which alone is 1e-8 to 2e-7.
BOUNDS = dict.fromkeys(CASES, 1e-6)


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
