"""Gemma 4: heads of two sizes, values that are keys, an embedding for each layer, experts beside
the dense path, last layers that read the keys and values of earlier ones; images and sounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmodel import Context, Input, Module, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError, PromptError
from ggmodel.image import composite, normalize, resize
from ggmodel.kvcache import CacheSpec, Causal, Sliding, share_last
from ggmodel.ml import DType, RopeType
from ggmodel.model import (
    Batch,
    Computed,
    LayerMemory,
    Multimodal,
    MultimodalEmbedding,
    Pixels,
    Prepared,
    VisionModel,
)
from ggmodel.nn import Embedding, Linear, RMSNorm

from .audio import Audio, AudioProjector
from .config import Gemma4Config, mel, rope_factors
from .vision import Projector, Vision, read_bounds

if TYPE_CHECKING:
    from PIL.Image import Image


class Attention(Module):
    """Without a projection of values these are the keys, not rotated. Layers that share keys and
    values use their queries alone; checkpoints may have the rest."""

    config: Gemma4Config
    q: Linear = gguf("attn_q", hf="q_proj", shape=("width", None))
    k: Linear | None = gguf("attn_k", hf="k_proj", shape=("width", None))
    v: Linear | None = gguf("attn_v", hf="v_proj", shape=("width", None))
    out: Linear = gguf("attn_output", hf="o_proj", shape=(None, "width"))
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=(None,))
    k_norm: RMSNorm | None = gguf("attn_k_norm", hf="k_norm", shape=(None,))

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        h, k, v = self.config, None, None
        dim = h.local_dim if h.local[cache.layer] else h.full_dim
        q = self.q_norm(self.q(x).reshape(dim, h.heads, -1))
        if cache.shares is None:
            assert self.k and self.k_norm
            heads = h.kv_heads[cache.layer]
            k = self.k(x).reshape(dim, heads, -1)
            v = k if self.v is None else self.v(x).reshape(dim, heads, -1)
            k, v = cache.rotate(self.k_norm(k), batch.positions), v.rms_norm(eps=h.eps)
        return self.out(nn.attention(cache.rotate(q, batch.positions), k, v, cache, scale=1.0))


def _norm(name: str, hf: str) -> RMSNorm:
    return gguf(name, hf=hf, shape=("width",))


class FeedForward(nn.GatedMLP):
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("width", None))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("width", None))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=(None, "width"))


class Experts(Module):
    """Experts beside a dense feed-forward part; both are normed before they are added."""

    config: Gemma4Config
    router: Linear = gguf("ffn_gate_inp", hf="router.proj", shape=("width", "experts"))
    router_scale: Tensor = gguf("ffn_gate_inp.scale", hf="router.scale", shape=("width",))
    scale: Tensor = gguf("ffn_down_exps.scale", hf="router.per_expert_scale", shape=("experts",))
    both: Tensor = gguf(
        "ffn_gate_up_exps.weight",
        hf="experts.gate_up_proj",
        shape=("width", "both_ffns", "experts"),
    )
    down: Tensor = gguf(
        "ffn_down_exps.weight", hf="experts.down_proj", shape=("expert_ffn", "width", "experts")
    )
    dense_norm: RMSNorm = _norm("post_ffw_norm_1", "post_feedforward_layernorm_1")
    norm: RMSNorm = _norm("pre_ffw_norm_2", "pre_feedforward_layernorm_2")
    post_norm: RMSNorm = _norm("post_ffw_norm_2", "post_feedforward_layernorm_2")

    def forward(self, x: Tensor, dense: Tensor) -> Tensor:
        """x [width, n], which the router sees without its norm; dense, the other part's result."""
        h = self.config
        scores = self.router((x.rms_norm(eps=h.eps) * self.router_scale).scale(h.width**-0.5))
        ids, weights = nn.choose_experts(scores, h.experts_used)
        scales = self.scale.reshape(1, h.experts).rows(ids.contiguous(ids.n_elements))
        both = self.both.mulmat_id(self.norm(x).reshape(h.width, 1, -1), ids)
        gate, up = (part.contiguous() for part in both.chunk(0, h.expert_ffn))
        y = self.down.mulmat_id(nn.activate(h.activation, gate, up), ids)
        y = nn.sum_experts(y * weights * scales.reshape(1, h.experts_used, -1))
        return self.dense_norm(dense) + self.post_norm(y)


class Layer(Module):
    config: Gemma4Config
    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    attn: Attention = gguf(hf="self_attn")
    attn_post_norm: RMSNorm = _norm("post_attention_norm", "post_attention_layernorm")
    ffn_norm: RMSNorm = _norm("ffn_norm", "pre_feedforward_layernorm")
    ffn: FeedForward = gguf(hf="mlp")
    experts: Experts | None
    ffn_post_norm: RMSNorm = _norm("post_ffw_norm", "post_feedforward_layernorm")
    per_layer_inputs: nn.PerLayerInputs | None
    output_scale: Tensor | None = gguf("layer_output_scale.weight", hf="layer_scalar", shape=(1,))

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        cache: LayerMemory,
        outputs: Tensor | None,
        per_layer: Tensor | None,
    ) -> Tensor:
        """x [width, n], per_layer [per layer, n, layers] → [width, n]."""
        x, y = nn.keep_rows(outputs, x, self.attn(self.attn_norm(x), batch, cache))
        x = x + self.attn_post_norm(y)
        y = self.ffn(self.ffn_norm(x))
        x = x + self.ffn_post_norm(y if self.experts is None else self.experts(x, y))
        if self.per_layer_inputs is not None and per_layer is not None:
            own = per_layer.slice(2, cache.layer, cache.layer + 1)
            (own,) = nn.keep_rows(outputs, own.reshape(own.dim(0), -1))
            x = x + self.per_layer_inputs(x, own)
        return x if self.output_scale is None else x * self.output_scale


class Text(Module):
    config: Gemma4Config
    embed: Embedding = gguf("token_embd", hf="embed_tokens", shape=("width", None))
    per_layer: nn.PerLayerEmbedding | None
    layers: list[Layer] = gguf("blk", hf="layers", n="layers")
    norm: RMSNorm = _norm("output_norm", "norm")
    factors: Tensor = gguf(
        "rope_freqs.weight", root=True, hf=Computed(rope_factors), shape=("half_full_dim",)
    )

    def ropes(self) -> list[nn.Rope]:
        """The rope of each layer; where all is seen, only some pairs rotate."""
        h, neox = self.config, RopeType.NEOX
        local = nn.Rope(h.local_rope_dims, h.local_base, type=neox)
        full = nn.Rope(h.full_rope_dims, h.full_base, type=neox, factors=self.factors)
        return [local if near else full for near in h.local]

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states F32 [width, outputs]."""
        # Rows of images replace embeddings that are scaled already: they are not scaled.
        x = batch.merge_embeddings(self.embed(batch.inputs).scale(self.config.width**0.5))
        per_layer = None if self.per_layer is None else self.per_layer(batch.inputs, x)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs, per_layer)
        return self.norm(x)


# Tokens around items, with their usual ids.
FRAMES = {
    "image": (("<|image>", 255999), ("<image|>", 258882)),
    "audio": (("<|audio>", 256000), ("<audio|>", 258883)),
}
# Names in checkpoints: of text alone, as published with images and sounds.
TEXT = ("model", "model.language_model")


@register("gemma4", hf=("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"))
class Gemma4(VisionModel, nn.ConformerModel):
    image_marker, audio_marker = "<|image|>", "<|audio|>"
    image_data = {}
    mel = staticmethod(mel)
    audio_samples = 30 * nn.AUDIO_RATE  # transformers cuts off the rest
    clip = {
        "projector_type": None,  # that of the tower would be that of the sounds, too
        "vision.projector_type": "gemma4v",
        "vision.image_size": 224,  # of no effect; other programs need it
        "vision.image_mean": [0.0] * 3,
        "vision.image_std": [1.0] * 3,
        "audio.projector_type": lambda h: "gemma4a" if h.audio_layers else None,
        "audio.feed_forward_length": lambda h: h.audio_ffn if h.audio_layers else None,
    }

    config: Gemma4Config
    text: Text = gguf(hf=TEXT)
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("width", None))
    vision: Vision | None = gguf("v", hf="model.vision_tower")
    projector: Projector | None = gguf("mm", hf="model.embed_vision")
    audio: Audio | None = gguf("a", hf="model.audio_tower")
    audio_projector: AudioProjector | None = gguf("mm.a", hf="model.embed_audio")

    bidirectional_images: Any = property(lambda m: m.config.both_ways)

    def validate(self) -> None:
        super().validate()
        h, layers = self.config, self.text.layers
        if (h.full_value_dim, h.local_value_dim) != (h.full_dim, h.local_dim):
            raise ConfigError("attention.value_length is another than attention.key_length")
        if len(h.kv_heads) != h.layers:
            raise ConfigError(f"{len(h.kv_heads)} attention.head_count_kv for {h.layers} layers")
        if h.ffns != (widths := [layer.ffn.gate.weight.dim(1) for layer in layers]):
            raise ConfigError(f"feed_forward_length is {h.ffn_each}, and the tensors have {widths}")
        # Which optional parts the tensors have, as the hyperparameters say.
        for i, layer in enumerate(layers):
            if (layer.experts is None) != (h.experts == 0):
                raise ConfigError(f"expert_count is {h.experts}, not as layer {i} has experts")
            if {layer.per_layer_inputs is None, self.text.per_layer is None} != {h.per_layer == 0}:
                raise ConfigError(
                    f"embedding_length_per_layer_input is {h.per_layer}, not as layer {i} has an "
                    "embedding of its own"
                )
            lacks = layer.attn.k is None or layer.attn.k_norm is None
            if i < h.layers - h.sharing and lacks:
                raise ConfigError(
                    f"layer {i} has no keys of its own, but attention.shared_kv_layers says that "
                    f"only the last {h.sharing} of {h.layers} share those of others"
                )
        places = self.vision.positions.dim(1) if self.vision else h.soft_tokens * h.pool
        if (sides := h.soft_tokens * h.pool) > places:
            raise ConfigError(f"images of up to {sides} patches in a row have {places} positions")

    def post_load(self) -> None:
        read_bounds([self.vision, self.audio])

    def caches(self) -> Sequence[CacheSpec]:
        h = self.config
        layers = Sliding.where(h.local, h.window, self.text.ropes())
        # Rows of images look ahead in local layers alone.
        layers = [replace(s, ahead=False) if isinstance(s, Causal) else s for s in layers]
        return share_last(layers, h.sharing)

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.text(batch)

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        return nn.softcap(self.head(self.states(ctx, batch)), self.config.softcap)

    @property
    def largest_image(self) -> tuple[int, int]:
        """One row of squares, as many as there may be rows."""
        side = self.config.pool * self.config.patch
        return self.config.soft_tokens * side, side

    def fitted(self, width: int, height: int) -> tuple[int, int]:
        """The largest size of about these proportions, of whole squares of patches that are no more
        than the rows of an image (transformers, `get_aspect_ratio_preserving_size`)."""
        h, side = self.config, self.config.pool * self.config.patch
        factor = math.sqrt(h.soft_tokens * side**2 / (width * height))
        across, down = int(factor * width / side), int(factor * height / side)
        if down == 0:
            across, down = min(width // height, h.soft_tokens), 1
        elif across == 0:
            across, down = 1, min(height // width, h.soft_tokens)
        return across * side, down * side

    def preprocess(self, image: Image) -> Pixels:
        """Pixels from 0 to 1; proportions are about kept."""
        h: Any = self.config
        image = resize(composite(image), self.fitted(*image.size), h.resample)
        return Pixels(normalize(image, h.image_mean, h.image_std)[None])

    def reference_pixels(self, inputs: Mapping[str, np.ndarray], data: Mapping[str, Any]) -> Pixels:
        """Patches [1, patches, patch · patch · 3] and their places, of which those of padding are
        negative, as a picture."""
        patch = self.config.patch
        places = inputs["image_position_ids"][0]
        real = places[:, 0] >= 0
        width, height = places.max(axis=0) + 1
        patches = inputs["pixel_values"][0][real].reshape(height, width, patch, patch, 3)
        values = patches.transpose(4, 0, 2, 1, 3).reshape(3, height * patch, width * patch)
        return Pixels(np.ascontiguousarray(values[None], np.float32), data)

    def encode_multimodal(self, ctx: Context, image: Pixels) -> list[Multimodal]:
        (height, width), h = image.values.shape[2:], self.config
        side, most = h.pool * h.patch, h.soft_tokens
        if height % side or width % side or not 0 < height * width <= most * side**2:
            raise PromptError(
                f"an image of {width} × {height} pixels; give multiples of {side} of which there "
                f"are at most {most} squares"
            )
        assert self.vision and self.projector
        rows, columns = np.indices((height // h.patch, width // h.patch)).reshape(2, -1)
        places = [ctx.constant(at) for at in (columns, rows)]
        tiles = [
            ctx.feed(lambda image, i=i: image.values[i], DType.F32, width, height, 3)
            for i in range(len(image.values))
        ]
        return [Multimodal(self.projector(self.vision(tile, places))) for tile in tiles]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input]:
        """Rows have the embedding of padding, token 0, in each layer."""
        begin, end = (Input(self.token_id(text, default=id)) for text, id in FRAMES[image[0].kind])
        both_ways = self.bidirectional_images and image[0].kind == "image"
        return [one for part in image for one in (begin, *part.inputs(0, both_ways), end)]

    audio_inputs: Any = image_inputs

    def encode_audio(self, ctx: Context, spectrum: Prepared) -> list[Multimodal]:
        assert self.audio and self.audio_projector
        return [Multimodal(self.audio_projector(self.audio(ctx, self.spectrum(ctx, spectrum))))]
