"""Llama 3.2 Vision: a Llama with layers of cross-attention to images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggmodel import Module, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError, PromptError
from ggmodel.kvcache import CacheSpec, Causal, Cross, LayerObjects
from ggmodel.ml import Context
from ggmodel.model import (
    Batch,
    Input,
    Multimodal,
    MultimodalEmbedding,
    Numbers,
    PermuteRope,
    Pixels,
    VisionModel,
)
from ggmodel.nn import Linear

from .config import MllamaConfig
from .image import tiles_of, tiles_used
from .vision import Vision

if TYPE_CHECKING:
    from PIL.Image import Image


class HeadNorm(Module):
    """RMSNorm of heads. Files have queries and keys permuted as for rope, though they are not
    rotated, but not this weight."""

    config: MllamaConfig
    weight: Tensor = gguf("weight", shape=("head_dim",))

    def forward(self, x: Tensor) -> Tensor:
        halves = self.weight.reshape(-1, 2).permute(1, 0)
        return x.rms_norm(halves.contiguous(x.dim(0)), self.config.eps)


class CrossAttention(Module):
    config: MllamaConfig
    q: Linear = gguf("q_proj", op=PermuteRope("heads"), hf="q_proj", shape=("width", "width"))
    k: Linear = gguf("k_proj", op=PermuteRope("kv_heads"), hf="k_proj", shape=("width", "k_width"))
    v: Linear = gguf("v_proj", hf="v_proj", shape=("width", "k_width"))
    out: Linear = gguf("o_proj", hf="o_proj", shape=("width", "width"))
    q_norm: HeadNorm = gguf("q_norm", hf="q_norm")
    k_norm: HeadNorm = gguf("k_norm", hf="k_norm")

    def forward(self, x: Tensor, images: Tensor | None, cache: LayerObjects) -> Tensor:
        h = self.config
        if images is not None:
            k = self.k_norm(self.k(images).reshape(h.head_dim, h.kv_heads, -1))
            cache.put(k, self.v(images).reshape(h.head_dim, h.kv_heads, -1))
        q = self.q_norm(self.q(x).reshape(h.head_dim, h.heads, -1))
        y = nn.attention(q.scale(h.head_dim**-0.5), None, None, cache, scale=1.0)
        return self.out(y.reshape(h.width, -1))


class Layer(nn.PreNormLayer):
    attn: nn.PermutedAttention


class CrossLayer(nn.PreNormLayer):
    attn: CrossAttention = gguf(prefix="cross_attn_", hf="cross_attn")
    attn_gate: Tensor = gguf("cross_attn_attn_gate", shape=(1,))
    ffn_gate: Tensor = gguf("cross_attn_mlp_gate", shape=(1,))

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerObjects, outputs: Tensor | None
    ) -> Tensor:
        if cache.skipped:
            return x if outputs is None else x.rows(outputs)
        # The gates are zero for rows that see no image.
        y = self.attn(self.attn_norm(x), batch.multimodal, cache)
        x = x + y * (cache.seen * self.attn_gate.tanh())
        y = self.ffn(self.ffn_norm(x))
        x = x + y * (cache.seen * self.ffn_gate.tanh())
        return x if outputs is None else x.rows(outputs)


@register("mllama", hf="MllamaForConditionalGeneration")
class Mllama(nn.Decoder, VisionModel, text="language_model.model"):
    image_marker = "<|image|>"

    config: MllamaConfig
    layers: list[Layer | CrossLayer]
    head: Linear = gguf("output", hf="language_model.lm_head", shape=("width", None))
    vision: Vision | None = gguf("v", hf="vision_model")
    projector: Linear | None = gguf(
        "mm.0", hf="multi_modal_projector", shape=("encoded_width", "width")
    )

    def caches(self) -> list[CacheSpec]:
        h = self.config
        images, text = Cross(rows=h.tiles * h.positions, objects=2), Causal(self.rotary.rope())
        return [images if isinstance(layer, CrossLayer) else text for layer in self.layers]

    def validate(self) -> None:
        h = self.config
        if self.has_vision and not all(
            isinstance(i, int) and 0 <= i < h.vit_layers for i in h.intermediate
        ):
            raise ConfigError(
                f"vision.intermediate_layers_indices {h.intermediate} of {h.vit_layers} layers"
            )

    largest_image = property(lambda m: (m.config.tiles * m.config.tile, m.config.tile))
    image_shape = property(lambda m: ("tiles", 3, m.config.tile, m.config.tile))

    image_data = {"aspect_ratio_id": Numbers(int)}

    def preprocess(self, image: Image) -> Pixels:
        return tiles_of(image, self.config)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        """`image.data` may have `aspect_ratio_id`; the default is one row of tiles."""
        assert self.vision is not None and self.projector is not None
        n, h = len(image.values), self.config
        ratio = image.data.get("aspect_ratio_id", n)
        if n not in (h.tiles, tiles_used(ratio, h.tiles)):
            raise PromptError(f"{n} tiles for the aspect_ratio_id {ratio}")
        used = tiles_used(ratio, h.tiles)
        rows = self.projector(self.vision(ctx, ratio, used))
        return [Multimodal(rows, used=used * h.positions)]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        """An image is one input; its token is the first id that has an embedding but no logit."""
        token = self.token_id(self.image_marker, default=self.head.weight.dim(1))
        return [Input(token, image[0])]
