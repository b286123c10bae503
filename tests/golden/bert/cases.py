"""The configurations of the bert golden files, as the config.json of a checkpoint; embeddings only.

A golden vector is the three ways of pooling one after the other: mean, first token, last token.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmodel.workbench.golden import weights


def bert(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "pad_token_id": 0,
        "torch_dtype": "float32",
        "type_vocab_size": 2,
        "vocab_size": 96,
    }
    config.update(changes)
    return config


CASES: dict[str, dict[str, Any]] = {}  # of logits
# The longest text has as many tokens as there are positions.
EMBEDDINGS: dict[str, Any] = {
    "released": (bert(), {}, [3, 1, 32, 17]),
    # An epsilon large enough to be seen, GELU by tanh, one type of tokens.
    "tanh": (
        bert(hidden_act="gelu_new", layer_norm_eps=1e-2, type_vocab_size=1, num_attention_heads=2),
        {},
        [12, 5],
    ),
}


BOUNDS = {"tanh": 1e-6}  # ggml's GELU reads a table in F16
POOLING = ("mean", "cls", "last")


def embed(states: Any, layers: dict[str, Any]) -> Any:
    vector, width = states.mean(0).repeat(3), states.shape[1]
    vector[width : 2 * width], vector[2 * width :] = states[0], states[-1]
    return vector


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, which knows norms by another name."""
    return weights.weight(name.replace("LayerNorm", "norm"), shape)


# Numbers that no case can see.
UNSEEN = {
    "blk.*.attn_k.bias": "it moves all scores of a query alike, and softmax removes that",
}
