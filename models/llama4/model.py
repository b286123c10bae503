"""Llama 4: the text model, and the layout of images in its prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn, register
from ggmodel.errors import PromptError
from ggmodel.kvcache import Causal, Chunked
from ggmodel.ml import Context
from ggmodel.model import (
    Batch,
    Input,
    LayerMemory,
    Multimodal,
    MultimodalEmbedding,
    Numbers,
    Part,
    Pixels,
    Step,
    Transpose,
    VisionModel,
)
from ggmodel.nn import Linear

from .config import Llama4Config
from .image import tiles_of
from .vision import Projector, Vision

if TYPE_CHECKING:
    from PIL.Image import Image


class Attention(Module):
    config: Llama4Config
    q: Linear = gguf("attn_q", hf="q_proj", shape=("width", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("width", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("width", "k_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("q_width", "width"))

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory, temperature: Tensor) -> Tensor:
        """temperature F32 [1, 1, n] multiplies the queries of layers without rope."""
        h = self.config
        q = self.q(x).reshape(h.head_dim, h.heads, -1)
        k = self.k(x).reshape(h.head_dim, h.kv_heads, -1)
        v = self.v(x).reshape(h.head_dim, h.kv_heads, -1)
        if cache.rope is None:
            q = q * temperature
        else:
            q, k = cache.rotate(q, batch.positions), cache.rotate(k, batch.positions)
            if h.qk_norm:
                q, k = q.rms_norm(eps=h.eps), k.rms_norm(eps=h.eps)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


def _half(index: int) -> Part:
    return Part("experts.gate_up_proj", index, ("expert_ffn", "expert_ffn"), axis=-1)


def _experts(name: str, hf: str | Part, *shape: str) -> Tensor:
    return gguf(f"ffn_{name}_exps.weight", hf=hf, op=Transpose(), shape=(*shape, "experts"))


class Experts(Module):
    config: Llama4Config
    router: Linear = gguf("ffn_gate_inp", hf="router", shape=("width", "experts"))
    gate: Tensor = _experts("gate", _half(0), "width", "expert_ffn")
    up: Tensor = _experts("up", _half(1), "width", "expert_ffn")
    down: Tensor = _experts("down", "experts.down_proj", "expert_ffn", "width")
    shared: nn.SharedExpert = gguf(hf="shared_expert")

    def forward(self, x: Tensor) -> Tensor:
        h, scores = self.config, self.router(x)
        ids = scores.top_k(h.experts_used)
        weights = scores.sigmoid().reshape(1, scores.dim(0), -1).rows(ids)
        # The weights multiply the input of the experts, not their output.
        routed = x.reshape(x.dim(0), 1, -1).repeat(1, h.experts_used) * weights
        gate, up = self.gate.mulmat_id(routed, ids), self.up.mulmat_id(routed, ids)
        y = nn.activate(h.activation, gate, up)
        return self.shared(x) + nn.sum_experts(self.down.mulmat_id(y, ids))


class Layer(nn.PreNormLayer):
    attn: Attention
    ffn: nn.GatedMLP | Experts = gguf(hf="feed_forward")


@register("llama4", hf=("Llama4ForConditionalGeneration", "Llama4ForCausalLM"))
class Llama4(nn.Decoder, VisionModel, text=("language_model.model", "model")):
    image_marker = "<|image|>"
    clip = {"vision.projector.scale_factor": lambda h: h.merged}

    config: Llama4Config
    layers: list[Layer]
    head: Linear = gguf(
        "output", "token_embd", hf=("language_model.lm_head", "lm_head"), shape=("width", None)
    )
    vision: Vision | None = gguf("v", hf="vision_model")
    projector: Projector | None = gguf(hf="")

    def caches(self) -> list[Causal | Chunked]:
        """Layers with rope attend within chunks, the others to all positions."""
        h = self.config
        chunked, causal = Chunked(h.chunk, self.rotary.rope()), Causal()
        return [chunked if (i + 1) % h.no_rope_interval else causal for i in range(h.layers)]

    def temperature(self, step: Step) -> np.ndarray:
        """The factor on queries of layers without rope, [n, 1, 1]; it grows with the position
        (arXiv 2501.19399, as in transformers, Llama4TextAttention)."""
        h = self.config
        floors = np.floor((step.positions + 1) / h.tuning_floor)
        return (np.log1p(floors) * (h.tuning_scale if h.tuned else 0) + 1)[:, None, None]

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x = batch.merge_embeddings(self.embed(batch.inputs))
        temperature = batch.feed(self.temperature, DType.F32, 1, 1, batch.size)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs, temperature)
        return self.norm(x)

    largest_image = property(lambda m: (m.config.tiles * m.config.tile, m.config.tile))
    image_shape = property(lambda m: ("tiles", 3, m.config.tile, m.config.tile))
    image_data = {"aspect_ratio": Numbers(int, (2,), least=1)}

    def preprocess(self, image: Image) -> Pixels:
        return tiles_of(image, self.config)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """One tensor a tile. Its data is the separator that follows it: "x" within a row, "y" after
        a row; None for the view of the whole, which is last.

        `image.data` may have `aspect_ratio`, (rows, columns) of tiles; the default is one row.
        """
        assert self.vision is not None and self.projector is not None
        n = len(image.values)
        rows, columns = image.data.get("aspect_ratio", (1, max(1, n - 1)))
        if n != rows * columns + (rows * columns > 1):
            raise PromptError(
                f"{n} tiles for {rows} rows of {columns}; several are followed by a view of the "
                "whole"
            )
        tiles = self.projector(self.vision(ctx, n)).chunk(2, 1)
        data = [*("x" if i % columns else "y" for i in range(1, n)), None]
        return [Multimodal(s.reshape(s.dim(0), -1), d) for s, d in zip(tiles, data, strict=True)]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        def token(name: str, default: int) -> Input:
            return Input(self.token_id(f"<|{name}|>", default=default))

        start, end = token("image_start", 200080), token("image_end", 200081)
        whole, patch = token("image", 200090), token("patch", 200092)
        axes = {"x": token("tile_x_separator", 200084), "y": token("tile_y_separator", 200085)}
        inputs = [start]
        for tile in image:
            rows = [Input(patch.token, tile), *[patch] * (len(tile) - 1)]
            inputs += [whole, *rows] if tile.data is None else [*rows, axes[tile.data]]
        return [*inputs, end]
