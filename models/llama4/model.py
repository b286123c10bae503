"""Llama 4: the text model, and where images go in its prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggmodel import DType, Model, Module, Tensor, gguf, nn, register
from ggmodel.errors import PromptError
from ggmodel.kvcache import Causal, Chunked
from ggmodel.model import (
    Batch,
    Computed,
    Input,
    Multimodal,
    MultimodalEmbedding,
    Part,
    Pixels,
    Step,
    Transpose,
)
from ggmodel.nn import Linear, RMSNorm

from .config import Hyper
from .image import MOST_A_SIDE, tiles_of
from .vision import Projector, Vision

if TYPE_CHECKING:
    from PIL.Image import Image


class Attention(Module):
    config: Hyper
    q: Linear = gguf("attn_q", hf="q_proj", shape=("hidden", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("hidden", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("hidden", "k_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("q_width", "hidden"))
    factors: Tensor | None = gguf("rope_freqs.weight", root=True, hf=Computed(nn.llama3_factors))

    def rope(self) -> nn.Rope:
        return nn.Rope(self.config.rope_dims, self.config.rope_base, factors=self.factors)

    def forward(self, x: Tensor, batch: Batch, cache, temperature: Tensor | None) -> Tensor:
        """temperature F32 [1, 1, n] in layers without rope, None in those with it."""
        h, rope = self.config, self.rope()
        q = self.q(x).reshape(h.head_dim, h.heads, -1)
        k = self.k(x).reshape(h.head_dim, h.kv_heads, -1)
        v = self.v(x).reshape(h.head_dim, h.kv_heads, -1)
        if temperature is not None:
            q = q * temperature
        else:
            q, k = rope(q, batch.positions), rope(k, batch.positions)
            if h.qk_norm:
                q, k = q.rms_norm(eps=h.eps), k.rms_norm(eps=h.eps)
        return self.out(nn.attention(q, k, v, cache, scale=h.head_dim**-0.5))


class Dense(Module):
    dims = {"gate": (0, 1), "up": (0, 1), "down": (1, 0)}
    gate: Linear = gguf("ffn_gate", hf="gate_proj")
    up: Linear = gguf("ffn_up", hf="up_proj")
    down: Linear = gguf("ffn_down", hf="down_proj")

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).silu(self.up(x)))


def _half(name: str, index: int) -> Tensor:
    source = Part("experts.gate_up_proj", index, ("expert_ffn", "expert_ffn"), axis=-1)
    return gguf(name, hf=source, op=Transpose(), shape=("hidden", "expert_ffn", "experts"))


class Experts(Module):
    config: Hyper
    router: Linear = gguf("ffn_gate_inp", hf="router", shape=("hidden", "experts"))
    gate: Tensor = _half("ffn_gate_exps.weight", 0)
    up: Tensor = _half("ffn_up_exps.weight", 1)
    down: Tensor = gguf(
        "ffn_down_exps.weight",
        hf="experts.down_proj",
        op=Transpose(),
        shape=("expert_ffn", "hidden", "experts"),
    )
    shared: Dense = gguf(suffix="_shexp", hf="shared_expert", shape=("hidden", "expert_ffn"))

    def forward(self, x: Tensor) -> Tensor:
        used, scores = self.config.experts_used, self.router(x)
        ids = scores.top_k(used)
        weights = scores.sigmoid().reshape(1, scores.dim(0), -1).rows(ids)
        # The weights go on what the experts read, not on what they give.
        routed = x.reshape(x.dim(0), 1, -1).repeat(1, used) * weights
        y = self.gate.mulmat_id(routed, ids).silu(self.up.mulmat_id(routed, ids))
        return self.shared(x) + nn.sum_experts(self.down.mulmat_id(y, ids))


class Layer(Module):
    attn_norm: RMSNorm = gguf("attn_norm", hf="input_layernorm", shape=("hidden",))
    attn: Attention = gguf(hf="self_attn")
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("hidden",))
    ffn: Dense | Experts = gguf(hf="feed_forward", shape=("hidden", "ffn"))

    def forward(
        self, x: Tensor, batch: Batch, cache, temperature: Tensor | None, outputs: Tensor | None
    ) -> Tensor:
        y = self.attn(self.attn_norm(x), batch, cache, temperature)
        if outputs is not None:
            x, y = x.rows(outputs), y.rows(outputs)
        x = x + y
        return x + self.ffn(self.ffn_norm(x))


def _text(name: str) -> tuple[str, str]:
    """The name in a checkpoint with images, and in one without."""
    return f"language_model.{name}", name


@register("llama4", hf=("Llama4ForConditionalGeneration", "Llama4ForCausalLM"))
class Llama4(Model):
    image_marker = "<|image|>"
    clip = {"vision.projector.scale_factor": lambda h: h.merged}

    config: Hyper
    embed: nn.Embedding = gguf("token_embd", hf=_text("model.embed_tokens"), shape=("hidden", None))
    layers: list[Layer] = gguf("blk", hf=_text("model.layers"), n="layers")
    norm: RMSNorm = gguf("output_norm", hf=_text("model.norm"), shape=("hidden",))
    head: Linear = gguf("output", "token_embd", hf=_text("lm_head"), shape=("hidden", None))
    vision: Vision | None = gguf("v", hf="vision_model")
    projector: Projector | None = gguf(hf="")

    def rotates(self, layer: int) -> bool:
        """Whether a layer has rope; those that do attend within chunks, the others to all."""
        return (layer + 1) % self.config.no_rope_interval > 0

    def caches(self) -> list[Causal | Chunked]:
        return [
            Chunked(self.config.chunk, layer.attn.rope()) if self.rotates(i) else Causal()
            for i, layer in enumerate(self.layers)
        ]

    def temperature(self, step: Step) -> np.ndarray:
        """What layers without rope multiply queries with, [n, 1, 1]: it grows with the position
        (arXiv 2501.19399, as in transformers, Llama4TextAttention)."""
        h = self.config
        floors = np.floor((step.positions + 1) / h.tuning_floor)
        return (np.log1p(floors) * (h.tuning_scale if h.tuned else 0) + 1)[:, None, None]

    def hidden(self, ctx, batch: Batch) -> Tensor:
        x = batch.lay_images(self.embed(batch.inputs))
        temperature = batch.feed(self.temperature, DType.F32, 1, 1, batch.size)
        for i, (layer, cache, outputs) in enumerate(batch.through(self.layers)):
            x = layer(x, batch, cache, None if self.rotates(i) else temperature, outputs)
        return self.norm(x)

    @property
    def sees(self) -> bool:
        return self.vision is not None and self.projector is not None

    @property
    def largest_image(self) -> tuple[int, int]:
        return MOST_A_SIDE * self.config.tile, MOST_A_SIDE * self.config.tile

    def preprocess(self, image: Image) -> Pixels:
        return tiles_of(image, self.config.tile)

    def encode_multimodal(self, ctx, image: Pixels) -> list[Multimodal]:
        """One tensor a tile. Its data is what separates it from the next one: "x" within a row, "y"
        behind one; None for the view of the whole, which is last.

        `image.data` may have `aspect_ratio`, the rows and columns of tiles; one row is assumed.
        """
        assert self.vision is not None and self.projector is not None
        n, tile = len(image.values), self.config.tile
        rows, columns = image.data.get("aspect_ratio", (1, max(1, n - 1)))
        if image.values.shape[1:] != (3, tile, tile) or n != rows * columns + (rows * columns > 1):
            raise PromptError(
                f"pixels {list(image.values.shape)} for {rows} rows of {columns} tiles; each is "
                f"[3, {tile}, {tile}], and several are followed by a view of the whole"
            )
        seen = self.projector(self.vision(ctx, image.values)).chunk(2, 1)
        data = [*("x" if i % columns else "y" for i in range(1, n)), None]
        return [Multimodal(s.reshape(s.dim(0), -1), d) for s, d in zip(seen, data, strict=True)]

    def post_tokenize(self, inputs: list[Input | list[MultimodalEmbedding]]) -> list[Input]:
        def token(name: str, default: int) -> Input:
            return Input(self.token_id(f"<|{name}|>", default))

        start, end = token("image_start", 200080), token("image_end", 200081)
        whole, patch = token("image", 200090), token("patch", 200092)
        axes = {"x": token("tile_x_separator", 200084), "y": token("tile_y_separator", 200085)}
        found: list[Input] = []
        for item in inputs:
            if isinstance(item, Input):
                found.append(item)
                continue
            found.append(start)
            for seen in item:
                rows = [Input(patch.token, seen), *[patch] * (len(seen) - 1)]
                found += [whole, *rows] if seen.data is None else [*rows, axes[seen.data]]
            found.append(end)
        return found
