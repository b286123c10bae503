"""The configurations of the modern_bert golden files, as the config.json of a checkpoint."""

from typing import Any

from tests.golden.encoders import HEAD, embed, encoder, pooling

__all__ = ["embed"]


def modern(head: str = "Model", **changes: Any) -> dict[str, Any]:
    usual = {
        "hidden_activation": "gelu",
        "local_attention": 6,
        "norm_eps": 1e-2,
        "num_hidden_layers": 4,
        "global_rope_theta": 60.0,
        "local_rope_theta": 30.0,
    }
    config = encoder(f"ModernBert{head}", "modernbert", **{**usual, **changes})
    del config["hidden_act"], config["layer_norm_eps"]
    return config


CASES: dict[str, dict[str, Any]] = {}  # of logits
EMBEDDINGS: dict[str, Any] = {
    "published": (modern(), {}, [24, 3, 1]),
    "head": (modern(HEAD, classifier_pooling="cls"), {}, [12, 4]),
    # Granite's embeddings have SwiGLU; a head behind the mean, biases, other layers.
    "mean": (
        modern(
            HEAD,
            hidden_activation="silu",
            classifier_pooling="mean",
            classifier_activation="silu",
            classifier_bias=True,
            attention_bias=True,
            mlp_bias=True,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        {},
        [12, 4],
    ),
}
POOLING = pooling
