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


def relative(family: str, head: str = "Model", **changes: Any) -> dict[str, Any]:
    """The configuration of a relative: small, with an epsilon that shows and labels of its own."""
    kind = {"XLMRoberta": "xlm-roberta"}.get(family, family.lower())
    config = bert(architectures=[family + head], model_type=kind, layer_norm_eps=1e-2)
    if head == "ForSequenceClassification":
        config["id2label"] = {"0": "bad", "1": "good", "2": "neither"}
    return {**config, **changes}


HEAD = "ForSequenceClassification"
_ROBERTA: dict[str, Any] = {"pad_token_id": 2, "max_position_embeddings": 35, "type_vocab_size": 1}
_DISTILBERT = {
    "architectures": ["DistilBert" + HEAD],
    "model_type": "distilbert",
    "id2label": {"0": "no", "1": "yes"},
    "activation": "gelu",
    "dim": 64,
    "hidden_dim": 96,
    "max_position_embeddings": 32,
    "n_heads": 4,
    "n_layers": 3,
    "pad_token_id": 0,
    "torch_dtype": "float32",
    "vocab_size": 96,
}
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
    # Its pooler is the head's first layer.
    "reranker": (relative("Bert", HEAD, id2label={"0": "LABEL_0"}), {}, [9, 4]),
    "xlm_roberta": (relative("XLMRoberta", **_ROBERTA), {}, [32, 6]),
    "roberta_head": (relative("Roberta", HEAD, **_ROBERTA), {}, [8, 3]),
    "distilbert": (_DISTILBERT, {}, [8, 3]),
    "electra": (relative("Electra", HEAD, embedding_size=64), {}, [8, 3]),
    "electra_small": (relative("Electra", HEAD, embedding_size=32), {}, [8, 3]),
}


BOUNDS = {"tanh": 1e-6}  # ggml's GELU reads a table in F16


def POOLING(config: dict[str, Any]) -> tuple[Any, ...]:
    head = config["architectures"][0].endswith(HEAD)
    return ("mean", "cls", "last", "rank") if head else ("mean", "cls", "last")


def embed(states: Any, layers: dict[str, Any]) -> Any:
    parts = [states.mean(0), states[0], states[-1], layers.get("logits", states[0, :0])]
    vector = states.new_empty(sum(len(part) for part in parts))
    at = 0
    for part in parts:
        vector[at : at + len(part)] = part
        at += len(part)
    return vector


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The common rule, which knows norms by another name."""
    return weights.weight(name.replace("LayerNorm", "norm"), shape)


# Numbers that no case can see.
UNSEEN = {
    "blk.*.attn_k.bias": "it moves all scores of a query alike, and softmax removes that",
}
