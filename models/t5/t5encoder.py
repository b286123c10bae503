"""T5's encoder alone, for embeddings."""

from __future__ import annotations

import numpy as np

from ggmodel import DType, Tensor, gguf, nn, register
from ggmodel.kvcache import Bidirectional
from ggmodel.ml import Context
from ggmodel.model import Batch, Model, Step
from ggmodel.nn import Embedding


@register("t5encoder", hf="T5EncoderModel")
class T5Encoder(Model):
    ignore = ("output.weight",)
    ignore_hf = ("encoder.embed_tokens.weight", "decoder.*", "lm_head.weight")

    config: nn.RelativeConfig
    embed: Embedding = gguf(
        "token_embd", hf=("shared", "encoder.embed_tokens"), shape=("width", None)
    )
    encoder: nn.RelativeEncoder = gguf("enc", hf="encoder")

    def caches(self) -> list[Bidirectional]:
        return [Bidirectional()] * self.config.layers

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        h, n = self.config, batch.size

        def numbers(step: Step) -> np.ndarray:
            return nn.relative_buckets(nn.distances(step), h.buckets, h.farthest).ravel()

        buckets = batch.feed(numbers, DType.I32, n * n)
        return self.encoder(self.embed(batch.inputs), buckets, batch)
