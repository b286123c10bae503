"""Marian, of which Opus-MT's translations are made: BART's layers, sines for positions, and no norm
of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmodel import DType, Tensor, gguf, kv, register
from ggmodel.ml import Context
from ggmodel.model import Batch, Step

from .bart import Bart, BartConfig, Decoder, Encoder, said


class MarianConfig(BartConfig):
    fixed = {
        "decoder_vocab_size": lambda hf: hf["vocab_size"],
        "share_encoder_decoder_embeddings": True,
    }

    start: int = kv(
        "decoder_start_token_id",
        hf=(*said("decoder_start_token_id"), "pad_token_id", lambda hf: 58100),
    )


def sines(positions: np.ndarray, width: int) -> np.ndarray:
    """Sines of each position at falling frequencies, then cosines, float32 [n, width]
    (transformers, modeling_marian, MarianSinusoidalPositionalEmbedding)."""
    angles = positions[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


class MarianEncoder(Encoder):
    places: Any = None
    embed_norm: Any = None


class MarianDecoder(Decoder):
    places: Any = None
    embed_norm: Any = None


@register("marian", hf="MarianMTModel")
class Marian(Bart):
    ignore_hf = (*Bart.ignore_hf, "*.embed_positions.weight")

    config: MarianConfig
    encoder: MarianEncoder = gguf("enc", hf="model.encoder")
    decoder: MarianDecoder = gguf("dec", hf="model.decoder")

    def encode(self, ctx: Context, ids: Tensor) -> Tensor:
        places = sines(np.arange(ids.dim(0)), self.config.width)
        x = self.embedded(ids) + ctx.constant(places, DType.F32)
        for layer in self.encoder.layers:
            x = layer(x)
        return x

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        width = self.config.width

        def places(step: Step) -> np.ndarray:
            return sines(step.positions, width)

        x = self.embedded(batch.inputs) + batch.feed(places, DType.F32, width, batch.size)
        for layer, caches, outputs in batch.through(self.decoder.layers):
            x = layer(x, batch, caches, outputs)
        return x
