"""RoCBertForCausalLM, as `ggmodel port` wrote it."""

from __future__ import annotations

from ggmodel import Module, Tensor, gguf, nn, register
from ggmodel.kvcache import Causal
from ggmodel.ml import Context, DType
from ggmodel.model import Batch, LayerMemory
from ggmodel.nn import Embedding, LayerNorm, Linear


class RocBertConfig(nn.LayerNormConfig):
    activation: str = nn.activation("gelu", "hidden_act")


class Attention(nn.Attention):
    q: Linear = gguf("attn_q", hf="self.query", shape=("width", "q_width"))
    k: Linear = gguf("attn_k", hf="self.key", shape=("width", "k_width"))
    v: Linear = gguf("attn_v", hf="self.value", shape=("width", "v_width"))
    out: Linear = gguf("attn_output", hf="output.dense", shape=("out_width", "width"))


class FeedForward(nn.MLP):
    up: Linear = gguf("ffn_up", hf="intermediate.dense", shape=("width", "ffn"))
    down: Linear = gguf("ffn_down", hf="output.dense", shape=("ffn", "width"))


class Layer(Module):
    attn: Attention = gguf(hf="attention")
    attn_post_norm: LayerNorm = gguf(
        "post_attention_norm", hf="attention.output.LayerNorm", shape=("width",)
    )
    ffn: FeedForward = gguf(hf="")
    norm: LayerNorm = gguf("layer_output_norm", hf="output.LayerNorm", shape=("width",))

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, outputs: Tensor | None
    ) -> Tensor:
        attn = self.attn(x, batch, cache)
        x, attn = nn.keep_rows(outputs, x, attn)
        attn_post_norm = self.attn_post_norm(x + attn)
        ffn = self.ffn(attn_post_norm)
        norm = self.norm(attn_post_norm + ffn)
        return norm


@register("roc_bert", hf="RoCBertForCausalLM")
class RocBert(nn.LayerNormDecoder):
    config: RocBertConfig
    embed: Embedding = gguf(
        "token_embd", hf="roc_bert.embeddings.word_embeddings", shape=("width", None)
    )
    shapes: Embedding = gguf("shape_embd", hf="roc_bert.embeddings.shape_embed", shape=(None, None))
    sounds: Embedding = gguf(
        "sound_embd", hf="roc_bert.embeddings.pronunciation_embed", shape=(None, None)
    )
    embed_proj: Linear = gguf(
        "embd_proj", hf="roc_bert.embeddings.map_inputs_layer", shape=(None, "width")
    )
    places: Embedding = gguf(
        "position_embd", hf="roc_bert.embeddings.position_embeddings", shape=("width", "context")
    )
    types: Embedding = gguf(
        "token_types", hf="roc_bert.embeddings.token_type_embeddings", shape=("width", None)
    )
    embed_norm: LayerNorm = gguf(
        "token_embd_norm", hf="roc_bert.embeddings.LayerNorm", shape=("width",)
    )
    layers: list[Layer] = gguf("blk", hf="roc_bert.encoder.layer", n="layers")
    dense: Linear = gguf(
        "output_dense", hf="cls.predictions.transform.dense", shape=("width", None)
    )
    norm: LayerNorm = gguf(
        "output_norm", hf="cls.predictions.transform.LayerNorm", shape=("width",)
    )
    head: Linear = gguf(
        "token_embd", hf="roc_bert.embeddings.word_embeddings", shape=("width", None)
    )
    head_bias: Tensor = gguf("output_bias.weight", hf="cls.predictions.bias", shape=(None,))

    def caches(self) -> list[Causal]:
        return [Causal(absolute=True)] * self.config.layers

    def embedded(self, batch: Batch) -> Tensor:
        x = super().embedded(batch)
        for table in (self.shapes, self.sounds):  # text alone has their first rows
            x = x.concat(table.weight.slice(1, 0, 1).cast(DType.F32).repeat(1, x.dim(1)), 0)
        x = self.embed_proj(x) + self.places(batch.positions)
        return self.embed_norm(x + self.types.weight.slice(1, 0, 1).cast(DType.F32))

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x = self.embedded(batch)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(nn.activate("gelu", self.dense(x)))

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        return super().forward(ctx, batch) + self.head_bias
