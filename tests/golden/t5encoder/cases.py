"""The configurations of the t5encoder golden files, as the config.json of a checkpoint."""

from typing import Any

from tests.golden.encoders import embed, pooling
from tests.golden.t5 import cases

__all__ = ["embed"]


def weight(name: str, shape: tuple[int, ...]) -> Any:
    """T5's rule, with small queries: as in trained ones, the scores are not scaled otherwise."""
    values = cases.weight(name, shape)
    return values / 4 if name.endswith("SelfAttention.q.weight") else values


def encoder(**changes: Any) -> dict[str, Any]:
    return cases.t5(architectures=["T5EncoderModel"], **changes)


CASES: dict[str, dict[str, Any]] = {}  # of logits
EMBEDDINGS: dict[str, Any] = {
    "published": (encoder(), {}, [40, 21, 1]),
    "gated": (
        encoder(
            feed_forward_proj="gated-gelu",
            num_heads=2,
            relative_attention_max_distance=14,
            tie_word_embeddings=False,
        ),
        {},
        [30, 4],
    ),
    "silu": (encoder(feed_forward_proj="gated-silu", num_layers=1), {}, [24, 3]),
}
BOUNDS = {"gated": 1e-6}  # ggml's GELU reads a table in F16
POOLING = pooling
