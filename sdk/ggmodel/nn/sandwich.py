"""Blocks of Gemma and its relatives: norms on both sides of a block, embeddings for each layer."""

from __future__ import annotations

from ..ml import Tensor
from ..model.batch import Batch
from ..model.cache import LayerMemory
from ..model.module import Module, gguf
from ..model.operations import AddConstant
from .decoder import keep_rows
from .layers import Embedding, GatedMLP, Linear, RMSNorm, activate


def _norm(name: str, hf: str) -> RMSNorm:
    """A norm that multiplies by 1 + weight in checkpoints."""
    return gguf(name, hf=hf, op=AddConstant(1), shape=("width",))


class SandwichLayer(Module):
    """x + norm(attn(norm(x))), then x + norm(ffn(norm(x))); norms multiply by 1 + weight in
    checkpoints. A subclass annotates `attn`, and `ffn` if it is no `GatedMLP`."""

    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    attn: Module = gguf(hf="self_attn")
    attn_post_norm: RMSNorm = _norm("post_attention_norm", "post_attention_layernorm")
    ffn_norm: RMSNorm = _norm("ffn_norm", "pre_feedforward_layernorm")
    ffn: GatedMLP = gguf(hf="mlp")
    ffn_post_norm: RMSNorm = _norm("post_ffw_norm", "post_feedforward_layernorm")

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, outputs: Tensor | None
    ) -> Tensor:
        """x [width, n] → [width, n], or the rows `outputs` of it."""
        x, y = keep_rows(outputs, x, self.attn(self.attn_norm(x), batch, cache))
        x = x + self.attn_post_norm(y)
        return x + self.ffn_post_norm(self.ffn(self.ffn_norm(x)))


class ScaledEmbedding(Embedding):
    """An embedding scaled by the root of a layer's part, the config's `per_layer`."""

    def forward(self, ids: Tensor) -> Tensor:
        """ids I32 [n] → [width, n] F32."""
        return super().forward(ids).scale(self.config.per_layer**0.5)


class PerLayerInputs(Module):
    """The part of a layer that its own embedding of a token gates. It reads the config's `width`,
    `per_layer` and `activation`."""

    gate: Linear = gguf("inp_gate", hf="per_layer_input_gate", shape=("width", "per_layer"))
    proj: Linear = gguf("proj", hf="per_layer_projection", shape=("per_layer", "width"))
    norm: RMSNorm = gguf("post_norm", hf="post_per_layer_input_norm", shape=("width",))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x [width, n], the layer's embedding [per layer, n] → [width, n]."""
        return self.norm(self.proj(activate(self.config.activation, self.gate(x), embedding)))


class PerLayerEmbedding(Module):
    """Each layer's own embedding of a token, mixed with a view of the token's. It reads the
    config's `width`, `layers`, `per_layer` and `per_layers`, the product of the last two."""

    embed: ScaledEmbedding = gguf(
        "per_layer_token_embd", hf="embed_tokens_per_layer", shape=("per_layers", None)
    )
    proj: Linear = gguf(
        "per_layer_model_proj", hf="per_layer_model_projection", shape=("width", "per_layers")
    )
    norm: RMSNorm = gguf(
        "per_layer_proj_norm", hf="per_layer_projection_norm", shape=("per_layer",)
    )

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        """ids I32 [n], embeddings x [width, n] → [per layer, n, layers]."""
        h = self.config
        own = self.embed(ids).reshape(h.per_layer, h.layers, -1)
        mixed = self.proj(x).scale(h.width**-0.5).reshape(h.per_layer, h.layers, -1)
        return (self.norm(mixed) + own).scale(0.5**0.5).permute(0, 2, 1).contiguous()
