"""MPNet: BERT with a score for the distance of two tokens beside their positions.

llama.cpp has no such architecture; tensors and keys are named as those of its T5 are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmodel import DType, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Bidirectional
from ggmodel.model import Batch, Step
from ggmodel.nn import Embedding


def _positions(hf: Mapping[str, Any]) -> int:
    return hf["max_position_embeddings"] - 2  # those of the padding


class MPNetConfig(nn.EncoderConfig):
    context: int = kv("context_length", hf=_positions)
    eps: float = kv("attention.layer_norm_epsilon", hf="layer_norm_eps", default=1e-12)
    buckets: int = kv(
        "attention.relative_buckets_count",
        hf=("relative_attention_num_buckets", lambda hf: 32),
        least=4,
    )
    types: int = kv("tokenizer.ggml.token_type_count", default=0)


class Text(nn.EncoderText):
    config: MPNetConfig
    positions: Embedding = nn.position_table()
    types: Any = None
    distances: nn.RelativeBias = gguf(
        "blk.0.attn_rel_b",
        hf="encoder.relative_attention_bias",
        shape=("heads", "buckets"),
    )

    def bias(self, batch: Batch) -> Tensor:
        n, count = batch.size, self.config.buckets

        def numbers(step: Step) -> np.ndarray:
            return nn.relative_buckets(nn.distances(step), count).ravel()

        return self.distances(batch.feed(numbers, DType.I32, n * n), n)


@register("mpnet", hf=("MPNetModel", "MPNetForMaskedLM", "MPNetForSequenceClassification"))
class MPNet(nn.Encoder):
    config: MPNetConfig
    text: Text

    def caches(self) -> list[Bidirectional]:
        return [Bidirectional()] * self.config.layers
