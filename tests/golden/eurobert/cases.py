"""The configurations of the eurobert golden files, as the config.json of a checkpoint."""

from typing import Any

from tests.golden.encoders import embed, encoder, pooling

__all__ = ["embed"]


def eurobert(head: str = "Model", **changes: Any) -> dict[str, Any]:
    usual = {"hidden_act": "silu", "rms_norm_eps": 1e-2, "rope_theta": 40.0}
    config = encoder(f"EuroBert{head}", "eurobert", **{**usual, **changes})
    del config["layer_norm_eps"]
    return config


CASES: dict[str, dict[str, Any]] = {}  # of logits
EMBEDDINGS: dict[str, Any] = {
    "published": (eurobert(), {}, [24, 3]),
    "grouped": (eurobert(num_key_value_heads=2, hidden_act="gelu_new"), {}, [9, 1]),
}
BOUNDS = {"grouped": 1e-6}  # ggml's GELU reads a table in F16
POOLING = pooling
