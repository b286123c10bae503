"""Llama 3.2 Vision: text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggmodel import Model, Module, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError, PromptError
from ggmodel.kvcache import CacheSpec, Causal, Cross, LayerObjects
from ggmodel.model import (
    Batch,
    Computed,
    Input,
    Multimodal,
    MultimodalEmbedding,
    PermuteRope,
    Pixels,
)
from ggmodel.nn import Linear, RMSNorm

from .config import Hyper
from .image import filled, tiles_of, tiles_used
from .vision import Vision

if TYPE_CHECKING:
    from PIL.Image import Image


class Attention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="q_proj", op=PermuteRope("heads"), shape=("hidden", "hidden"))
    k: Linear = gguf("attn_k", hf="k_proj", op=PermuteRope("kv_heads"), shape=("hidden", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("hidden", "k_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("hidden", "hidden"))
    factors: Tensor | None = gguf("rope_freqs.weight", root=True, hf=Computed(nn.llama3_factors))

    def rope(self) -> nn.Rope:
        return nn.Rope(self.config.rope_dims, self.config.rope_base, factors=self.factors)

    def forward(self, x: Tensor, batch: Batch, cache) -> Tensor:
        h, rope = self.config, self.rope()
        q = rope(self.q(x).reshape(h.head_dim, h.heads, -1), batch.positions)
        k = rope(self.k(x).reshape(h.head_dim, h.kv_heads, -1), batch.positions)
        v = self.v(x).reshape(h.head_dim, h.kv_heads, -1)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


class HeadNorm(Module):
    """RMSNorm of heads whose elements are permuted as for rope, though nothing is rotated: so are
    they in files, but not the weight."""

    config: Hyper
    weight: Tensor = gguf("weight", shape=("head_dim",))

    def forward(self, x: Tensor) -> Tensor:
        halves = self.weight.reshape(-1, 2).permute(1, 0)
        return x.rms_norm(halves.contiguous(x.dim(0)), self.config.eps)


class CrossAttention(Module):
    config: Hyper
    q: Linear = gguf("q_proj", op=PermuteRope("heads"), hf="q_proj", shape=("hidden", "hidden"))
    k: Linear = gguf("k_proj", op=PermuteRope("kv_heads"), hf="k_proj", shape=("hidden", "k_width"))
    v: Linear = gguf("v_proj", hf="v_proj", shape=("hidden", "k_width"))
    out: Linear = gguf("o_proj", hf="o_proj", shape=("hidden", "hidden"))
    q_norm: HeadNorm = gguf("q_norm", hf="q_norm")
    k_norm: HeadNorm = gguf("k_norm", hf="k_norm")

    def forward(self, x: Tensor, images: Tensor | None, cache: LayerObjects) -> Tensor:
        h = self.config
        if images is not None:
            k = self.k_norm(self.k(images).reshape(h.head_dim, h.kv_heads, -1))
            cache.put(k, self.v(images).reshape(h.head_dim, h.kv_heads, -1))
        q = self.q_norm(self.q(x).reshape(h.head_dim, h.heads, -1))
        y = q.scaled_dot_product_attention(
            *cache.get(), scale=h.head_dim**-0.5, cache_config_applied=True
        )
        return self.out(y.reshape(h.hidden, -1))


class Dense(Module):
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("hidden", "ffn"))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("hidden", "ffn"))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=("ffn", "hidden"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).silu(self.up(x)))


class Layer(Module):
    attn_norm: RMSNorm = gguf("attn_norm", hf="input_layernorm", shape=("hidden",))
    attn: Attention = gguf(hf="self_attn")
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("hidden",))
    ffn: Dense = gguf(hf="mlp")

    def forward(self, x: Tensor, batch: Batch, cache, outputs: Tensor | None) -> Tensor:
        y = self.attn(self.attn_norm(x), batch, cache)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = x + y
        return x + self.ffn(self.ffn_norm(x))


class CrossLayer(Module):
    attn_norm: RMSNorm = gguf("attn_norm", hf="input_layernorm", shape=("hidden",))
    attn: CrossAttention = gguf(prefix="cross_attn_", hf="cross_attn")
    attn_gate: Tensor = gguf("cross_attn_attn_gate", shape=(1,))
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("hidden",))
    ffn: Dense = gguf(hf="mlp")
    ffn_gate: Tensor = gguf("cross_attn_mlp_gate", shape=(1,))

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerObjects, outputs: Tensor | None
    ) -> Tensor:
        if cache.skipped:
            return x if outputs is None else x.rows(outputs)
        # Rows that see no image get nothing from either half.
        x = x + self.attn(self.attn_norm(x), batch.multimodal, cache) * self._gate(
            self.attn_gate, cache
        )
        y = self.ffn(self.ffn_norm(x)) * self._gate(self.ffn_gate, cache)
        return x + y if outputs is None else (x + y).rows(outputs)

    def _gate(self, gate: Tensor, cache: LayerObjects) -> Tensor:
        return cache.seen * gate.tanh()


@register("mllama", hf="MllamaForConditionalGeneration")
class Mllama(Model):
    image_marker = "<|image|>"

    config: Hyper
    embed: nn.Embedding = gguf(
        "token_embd", hf="language_model.model.embed_tokens", shape=("hidden", None)
    )
    layers: list[Layer | CrossLayer] = gguf("blk", hf="language_model.model.layers", n="layers")
    norm: RMSNorm = gguf("output_norm", hf="language_model.model.norm", shape=("hidden",))
    head: Linear = gguf("output", hf="language_model.lm_head", shape=("hidden", None))
    vision: Vision | None = gguf("v", hf="vision_model")
    projector: Linear | None = gguf(
        "mm.0", hf="multi_modal_projector", shape=("encoded_width", "hidden")
    )

    def caches(self) -> list[CacheSpec]:
        h = self.config
        images = Cross(rows=h.tiles * h.positions, objects=2)
        return [
            images if isinstance(layer, CrossLayer) else Causal(layer.attn.rope())
            for layer in self.layers
        ]

    def hidden(self, ctx, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(x)

    def validate(self) -> None:
        h = self.config
        if not self.sees:
            return
        if h.tile < 1 or h.patch < 1 or h.tile % h.patch or h.vision_hidden % h.vision_heads:
            raise ConfigError(
                f"tiles of {h.tile} pixels in patches of {h.patch}, {h.vision_hidden} numbers for "
                f"{h.vision_heads} heads: the second must divide the first"
            )
        if not all(isinstance(i, int) and 0 <= i < h.vision_layers for i in h.intermediate):
            raise ConfigError(
                f"vision.intermediate_layers_indices {h.intermediate} of {h.vision_layers} layers"
            )

    @property
    def sees(self) -> bool:
        return self.vision is not None and self.projector is not None

    @property
    def largest_image(self) -> tuple[int, int]:
        return self.config.tiles * self.config.tile, self.config.tile

    def preprocess(self, image: Image) -> Pixels:
        return tiles_of(image, self.config.tile, self.config.tiles)

    def encode_multimodal(self, ctx, image: Pixels) -> list[Multimodal]:
        """`image.data` may have `aspect_ratio_id`; one row of tiles is assumed."""
        assert self.vision is not None and self.projector is not None
        shape, h = image.values.shape, self.config
        ratio = image.data.get("aspect_ratio_id", shape[0])
        if shape[1:] != (3, h.tile, h.tile) or not isinstance(ratio, (int, np.integer)):
            raise PromptError(
                f"pixels {list(shape)} and an aspect_ratio_id of {ratio!r}; tiles are "
                f"[3, {h.tile}, {h.tile}]"
            )
        if shape[0] not in (h.tiles, tiles_used(ratio, h.tiles)):
            raise PromptError(f"{shape[0]} tiles for the aspect_ratio_id {ratio}")
        used, tiles = tiles_used(ratio, self.config.tiles), filled(image.values, self.config.tiles)
        rows = self.projector(self.vision(ctx, tiles, ratio, used))
        return [Multimodal(rows, used=used * self.config.positions)]

    def post_tokenize(self, inputs: list[Input | list[MultimodalEmbedding]]) -> list[Input]:
        """An image is one input; its token is the first that only the token embedding has."""
        token = self.token_id(self.image_marker, self.head.weight.dim(1))
        return [x if isinstance(x, Input) else Input(token, x[0]) for x in inputs]
