"""The configurations of the nomic_bert golden files, as the config.json of a checkpoint."""

from typing import Any

from ggmodel.workbench.golden import weights
from tests.golden.encoders import embed, encoder, pooling

__all__ = ["embed"]

_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 40.0}, "type_vocab_size": 2}
CASES: dict[str, dict[str, Any]] = {}  # of logits
EMBEDDINGS: dict[str, Any] = {
    "published": (encoder("NomicBertModel", "nomic_bert", hidden_act="silu", **_ROPE), {}, [24, 3]),
    "gelu": (encoder("NomicBertModel", "nomic_bert", **_ROPE), {}, [9, 1]),
}
POOLING = pooling


def weight(name: str, shape: tuple[int, ...]) -> Any:
    """The common rule, which knows norms by another name."""
    return weights.weight(name.replace("LayerNorm", "norm"), shape)
