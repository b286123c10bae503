"""The configurations of the jina_bert_v3 golden files, as the config.json of a checkpoint."""

from typing import Any

from tests.golden.encoders import embed, encoder, pooling
from tests.golden.nomic_bert.cases import weight

__all__ = ["embed", "weight"]

_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 40.0}, "type_vocab_size": 1}
CASES: dict[str, dict[str, Any]] = {}  # of logits
EMBEDDINGS: dict[str, Any] = {
    "published": (encoder("JinaEmbeddingsV3Model", "jina_embeddings_v3", **_ROPE), {}, [24, 3]),
}
POOLING = pooling
