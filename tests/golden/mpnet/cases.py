"""The configurations of the mpnet golden files, as the config.json of a checkpoint."""

from typing import Any

from tests.golden.encoders import HEAD, embed, encoder, pooling
from tests.golden.nomic_bert.cases import weight

__all__ = ["embed", "weight"]


def text(n: int) -> list[int]:
    """Ids without 1: transformers takes it for padding, and counts no position for it."""
    return [2 + (37 * i * i + 11 * i + n) % 93 for i in range(n)]


CASES: dict[str, dict[str, Any]] = {}  # of logits
EMBEDDINGS: dict[str, Any] = {
    # Longer than there are buckets, and than the last of them begins.
    "published": (
        encoder(
            "MPNetModel",
            "mpnet",
            max_position_embeddings=162,
            relative_attention_num_buckets=32,
            num_hidden_layers=2,
        ),
        {},
        [text(160), text(21), text(1)],
    ),
    "head": (encoder(f"MPNet{HEAD}", "mpnet"), {}, [text(9), text(4)]),
}
POOLING = pooling
UNSEEN = {
    "blk.*.attn_k.bias": "it moves all scores of a query alike, and softmax removes that",
}
