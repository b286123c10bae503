"""Parts of the configurations of encoders; a golden vector is the ways of pooling one after
the other: mean, first token, and the scores of a head where there is one."""

from __future__ import annotations

from typing import Any

HEAD = "ForSequenceClassification"


def encoder(architecture: str, kind: str, **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": kind,
        "hidden_act": "gelu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_norm_eps": 1e-2,
        "max_position_embeddings": 34,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "pad_token_id": 1,
        "torch_dtype": "float32",
        "vocab_size": 96,
    }
    if architecture.endswith(HEAD):
        config["id2label"] = {"0": "bad", "1": "good", "2": "neither"}
    return {**config, **changes}


def pooling(config: dict[str, Any]) -> tuple[Any, ...]:
    head = config["architectures"][0].endswith(HEAD)
    return ("mean", "cls", "rank") if head else ("mean", "cls")


def embed(states: Any, layers: dict[str, Any]) -> Any:
    parts = [states.mean(0), states[0], layers.get("logits", states[0, :0])]
    vector = states.new_empty(sum(len(part) for part in parts))
    at = 0
    for part in parts:
        vector[at : at + len(part)] = part
        at += len(part)
    return vector
