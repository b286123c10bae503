"""T5: an encoder of the prompt, a decoder that attends to it, positions as scores of distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggmodel import Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import CacheSpec, Causal, LayerObjects
from ggmodel.ml import Context, DType
from ggmodel.model import Batch, LayerMemory
from ggmodel.nn import Embedding, Linear, RMSNorm


def _scale(hf: Mapping[str, Any]) -> float:
    scaled = hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings") is not False)
    return hf["d_model"] ** -0.5 if scaled else 1.0


class T5Config(nn.RelativeConfig):
    decoder_layers: int = kv("decoder_block_count", hf="num_decoder_layers", default="layers")
    start: int = kv("decoder_start_token_id", hf=("decoder_start_token_id", "pad_token_id"))
    scale: float | None = kv("logit_scale", hf=_scale)


class CrossAttention(nn.RelativeAttention):
    bias: Any = None

    def forward(self, x: Tensor, source: Tensor | None, cache: LayerObjects) -> Tensor:
        h = self.config
        k, v = (
            None if source is None else p(source).reshape(h.head_dim, h.heads, -1)
            for p in (self.k, self.v)
        )
        q = self.q(x).reshape(h.head_dim, h.heads, -1)
        return self.out(nn.attention(q, k, v, cache, scale=1.0))


class Layer(Module):
    attn_norm: RMSNorm = gguf("attn_norm", hf="layer.0.layer_norm", shape=("width",))
    attn: nn.RelativeAttention = gguf(hf="layer.0.SelfAttention")
    cross_norm: RMSNorm = gguf("cross_attn_norm", hf="layer.1.layer_norm", shape=("width",))
    cross: CrossAttention = gguf(prefix="cross_", hf="layer.1.EncDecAttention")
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="layer.2.layer_norm", shape=("width",))
    ffn: nn.RelativeMLP = gguf(hf="layer.2.DenseReluDense")

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        caches: tuple[LayerMemory, LayerObjects],
        outputs: Tensor | None,
        scores: Tensor | None,
    ) -> Tensor:
        own, source = caches
        x = x + self.attn(self.attn_norm(x), scores, own)
        if not source.skipped:
            y = self.cross(self.cross_norm(x), batch.multimodal, source)
            x = x + y * source.seen
        (x,) = nn.keep_rows(outputs, x)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(Module):
    layers: list[Layer] = gguf("blk", hf="block", n="decoder_layers")
    norm: RMSNorm = gguf("output_norm", hf="final_layer_norm", shape=("width",))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        h, scores = self.config, None
        for layer, caches, outputs in batch.through(self.layers):
            if layer.attn.bias is not None:
                numbers = caches[0].by_distance(
                    lambda far: nn.relative_buckets(far, h.buckets, h.farthest, ahead=False)
                )
                scores = layer.attn.bias(numbers, numbers.dim(0) // batch.size)
            x = layer(x, batch, caches, outputs, scores)
        return self.norm(x)


@register("t5", hf="T5ForConditionalGeneration")
class T5(nn.EncoderDecoder):
    ignore = ("dec.blk.*.cross_attn_rel_b.weight",)
    ignore_hf = ("*.EncDecAttention.relative_attention_bias.weight", "*coder.embed_tokens.weight")

    config: T5Config
    embed: Embedding = gguf(
        "token_embd",
        hf=("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
        shape=("width", None),
    )
    encoder: nn.RelativeEncoder = gguf("enc", hf="encoder")
    decoder: Decoder = gguf("dec", hf="decoder")
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("width", None))

    def caches(self) -> list[tuple[CacheSpec, ...]]:
        return [(Causal(relative=True), self.source_cache())] * self.config.decoder_layers

    def encode(self, ctx: Context, ids: Tensor) -> Tensor:
        h, n = self.config, ids.dim(0)
        far = np.arange(n) - np.arange(n)[:, None]
        numbers = ctx.feed(
            lambda _: nn.relative_buckets(far, h.buckets, h.farthest).ravel(), DType.I32, n * n
        )
        return self.encoder(self.embed(ids), numbers)

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.decoder(self.embed(batch.inputs), batch)

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        h, tied = self.config, self.head.weight.name == self.embed.weight.name
        usual = h.width**-0.5 if tied else 1.0  # files of llama.cpp do not say it
        return self.head(self.states(ctx, batch)).scale(usual if h.scale is None else h.scale)
