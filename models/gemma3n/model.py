"""Gemma 3n: four streams of hidden states of which one is computed with, the others predicted
(AltUp); an embedding for each layer; last layers that read the keys and values of earlier ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmodel import Context, Module, Tensor, gguf, nn, register
from ggmodel.errors import ConfigError
from ggmodel.image import composite, normalize, resize
from ggmodel.kvcache import CacheSpec, Sliding, share_last
from ggmodel.ml import DType, RopeType
from ggmodel.model import (
    Batch,
    Input,
    LayerMemory,
    Multimodal,
    MultimodalEmbedding,
    Operation,
    Prepared,
    Stack,
    VisionModel,
)
from ggmodel.nn import Embedding, Linear, RMSNorm, Rotary

from .audio import Audio, AudioProjector
from .config import Gemma3nConfig
from .vision import Projector, Vision, check_images

if TYPE_CHECKING:
    from PIL.Image import Image


class Attention(Module):
    """Layers that share keys and values use their queries alone; checkpoints may have the rest."""

    config: Gemma3nConfig
    q: Linear = gguf("attn_q", hf="q_proj", shape=("width", "q_width"))
    k: Linear | None = gguf("attn_k", hf="k_proj", shape=("width", "k_width"))
    v: Linear | None = gguf("attn_v", hf="v_proj", shape=("width", "k_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("q_width", "width"))
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("head_dim",))
    k_norm: RMSNorm | None = gguf("attn_k_norm", hf="k_norm", shape=("head_dim",))

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        h, k, v = self.config, None, None
        q = self.q_norm(self.q(x).reshape(h.head_dim, h.heads, -1))
        if cache.shares is None:
            assert self.k and self.v and self.k_norm
            k = self.k_norm(self.k(x).reshape(h.head_dim, h.kv_heads, -1))
            k = cache.rotate(k, batch.positions)
            v = self.v(x).reshape(h.head_dim, h.kv_heads, -1).rms_norm(eps=h.eps)
        return self.out(nn.attention(cache.rotate(q, batch.positions), k, v, cache, scale=1.0))


class FeedForward(nn.GatedMLP):
    config: Gemma3nConfig
    gate: Linear = gguf("ffn_gate", hf="gate_proj", shape=("width", None))
    up: Linear = gguf("ffn_up", hf="up_proj", shape=("width", None))
    down: Linear = gguf("ffn_down", hf="down_proj", shape=(None, "width"))

    def forward(self, x: Tensor, cutoff: float) -> Tensor:
        """x [width, n] → [width, n]; of the gate remains what is so many deviations above its
        mean."""
        gate = self.gate(x)
        if cutoff > -math.inf:
            gate = (gate - gate.mean() - gate.stddev().scale(cutoff)).relu()
        return self.down(nn.activate(self.activation, gate, self.up(x)))


def _norm(name: str, hf: str) -> RMSNorm:
    return gguf(name, hf=hf, shape=("width",))


class Laurel(Module):
    """A residual of low rank."""

    left: Linear = gguf("laurel_l", hf="linear_left", shape=("width", None))
    right: Linear = gguf("laurel_r", hf="linear_right", shape=(None, "width"))
    norm: RMSNorm = _norm("laurel_post_norm", "post_laurel_norm")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.right(self.left(x)))


class AltUp(Module):
    """All streams are predicted from all, and corrected by how the active one was predicted
    (arXiv 2301.13310)."""

    config: Gemma3nConfig
    router: Linear = gguf("altup_router", hf="modality_router", shape=("width", "streams"))
    norm: RMSNorm = _norm("altup_router_norm", "router_norm")
    predict_by: Linear = gguf(
        "altup_predict_coef", hf="prediction_coefs", shape=("streams", "squared")
    )
    correct_by: Linear = gguf(
        "altup_correct_coef", hf="correction_coefs", shape=("streams", "streams")
    )
    output_scale: Tensor = gguf(
        "altup_correct_scale.weight", hf="correct_output_scale", shape=("width",)
    )

    def active(self, streams: Tensor) -> Tensor:
        """[width, streams, n] → the active one, [width, n]."""
        active = self.config.active
        return streams.slice(1, active, active + 1).contiguous(self.config.width, -1)

    def predict(self, streams: Tensor) -> Tensor:
        """[width, streams, n] → the same."""
        s = self.config.streams
        by = self.predict_by(self._modalities(self.active(streams))).reshape(s, s, -1)
        return streams + streams.permute(1, 0, 2).contiguous().mulmat(by)

    def correct(self, predicted: Tensor, active: Tensor) -> Tensor:
        """Predictions [width, streams, n] by what became of the active one, [width, n]."""
        h, by = self.config, self.correct_by(self._modalities(active))
        by = (by + by.fill(1)).reshape(1, h.streams, -1)
        missed = (active - self.active(predicted)).reshape(h.width, 1, -1)
        return predicted + missed.repeat(1, h.streams) * by

    def _modalities(self, active: Tensor) -> Tensor:
        return self.router(self.norm(active).scale(1 / self.config.width)).tanh()


class Layer(Module):
    config: Gemma3nConfig
    altup: AltUp = gguf(hf="altup")
    attn_norm: RMSNorm = _norm("attn_norm", "input_layernorm")
    laurel: Laurel = gguf(hf="laurel")
    attn: Attention = gguf(hf="self_attn")
    attn_post_norm: RMSNorm = _norm("post_attention_norm", "post_attention_layernorm")
    ffn_norm: RMSNorm = _norm("ffn_norm", "pre_feedforward_layernorm")
    ffn: FeedForward = gguf(hf="mlp")
    ffn_post_norm: RMSNorm = _norm("post_ffw_norm", "post_feedforward_layernorm")
    per_layer_inputs: nn.PerLayerInputs

    def forward(
        self,
        streams: Tensor,
        batch: Batch,
        cache: LayerMemory,
        outputs: Tensor | None,
        per_layer: Tensor,
    ) -> Tensor:
        """streams [width, streams, n], per_layer [per layer, n, layers] → streams."""
        h, i = self.config, cache.layer
        predicted = self.altup.predict(streams)
        x = self.altup.active(predicted)
        y = self.attn_norm(x)
        laurel, y = self.laurel(y), self.attn(y, batch, cache)
        own = per_layer.slice(2, i, i + 1).reshape(h.per_layer, -1)
        predicted = predicted.reshape(h.width * h.streams, -1)
        predicted, x, y, laurel, own = nn.keep_rows(outputs, predicted, x, y, laurel, own)
        x = (x + self.attn_post_norm(y) + laurel).scale(0.5**0.5)
        x = x + self.ffn_post_norm(self.ffn(self.ffn_norm(x), h.cutoffs[i]))
        streams = self.altup.correct(predicted.reshape(h.width, h.streams, -1), x)
        y = self.per_layer_inputs(self.altup.active(streams) * self.altup.output_scale, own)
        first, others = streams.chunk_sections(1, 1, h.passive)
        return first.concat(others + y.reshape(h.width, 1, -1), 1)


class PadRows(Operation):
    """A row for every token of the vocabulary: those behind the text's, of images and sounds, are
    the first one's."""

    def shape(self, shape: tuple[int, ...], config: Gemma3nConfig) -> tuple[int, ...]:
        return max(shape[0], config.vocabulary or 0), *shape[1:]

    def to_gguf(self, x: np.ndarray, config: Gemma3nConfig) -> np.ndarray:
        missing = self.shape(x.shape, config)[0] - len(x)
        return np.concatenate([x, np.repeat(x[:1], missing, axis=0)]) if missing else x

    def to_hf(self, x: np.ndarray, config: Gemma3nConfig) -> np.ndarray:
        return x[: config.layer_vocabulary]


class PerLayer(nn.PerLayerEmbedding):
    embed: nn.ScaledEmbedding = gguf(
        "per_layer_token_embd",
        hf="embed_tokens_per_layer",
        op=PadRows(),
        shape=("per_layers", None),
    )


def _altup(name: str, hf: str) -> Tensor:
    stack = Stack(f"{hf}.{{}}.weight", "passive")
    return gguf(f"{name}.weight", hf=stack, shape=("width", "width", "passive"))


def _size(x: Tensor) -> Tensor:
    return x.sqr().mean().clamp(1e-5, math.inf).sqrt()


class Text(Module):
    config: Gemma3nConfig
    embed: Embedding = gguf("token_embd", hf="embed_tokens", shape=("width", None))
    per_layer: PerLayer
    into: Tensor = _altup("altup_proj", "altup_projections")
    layers: list[Layer] = gguf("blk", hf="layers", n="layers")
    back: Tensor = _altup("altup_unembd_proj", "altup_unembed_projections")
    norm: RMSNorm = _norm("output_norm", "norm")
    rotary: Rotary

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states F32 [width, outputs]."""
        # Rows of sounds replace embeddings that are scaled already: they are not scaled.
        x = batch.merge_embeddings(self.embed(batch.inputs).scale(self.config.width**0.5))
        per_layer = self.per_layer(batch.inputs, x)
        x = self.spread(x)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs, per_layer)
        return self.norm(self.gather(x))

    def spread(self, x: Tensor) -> Tensor:
        """[width, n] → [width, streams, n], all of the size of the first."""
        h = self.config
        others = self.into.mulmat(x.reshape(h.width, -1, 1).repeat(2, h.passive))
        others = others * x.sqr().mean().sqrt() / _size(others)
        return x.reshape(h.width, 1, -1).concat(others.permute(0, 2, 1).contiguous(), 1)

    def gather(self, streams: Tensor) -> Tensor:
        """[width, streams, n] → their mean, all of the size of the first, [width, n]."""
        h = self.config
        first, others = streams.chunk_sections(1, 1, h.passive)
        total = first = first.contiguous(h.width, -1)
        others = self.back.mulmat(others.permute(0, 2, 1).contiguous())
        others = others * first.sqr().mean().sqrt() / _size(others)
        for i in range(h.passive):
            total = total + others.slice(2, i, i + 1).reshape(h.width, -1)
        return total.scale(1 / h.streams)


# Names in checkpoints: of text alone, as published with images and sounds, as in older ones.
TEXT = ("model", "model.language_model", "language_model.model")
HEAD = ("lm_head", "language_model.lm_head")


@register("gemma3n", hf=("Gemma3nForConditionalGeneration", "Gemma3nForCausalLM"))
class Gemma3n(VisionModel, nn.ConformerModel):
    image_marker, audio_marker = "<image_soft_token>", "<audio_soft_token>"
    image_data = {}
    # The encoders' metadata as llama.cpp's converter names them.
    clip = {
        "projector_type": None,
        "audio.projector_type": "gemma3na",
        "audio.feed_forward_length": lambda h: h.audio_ffn,
        "audio.attention.layer_norm_epsilon": lambda h: h.audio_eps,
        "vision.projector_type": "gemma3nv",
        "vision.image_mean": [0.0] * 3,
        "vision.image_std": [1.0] * 3,
        # Other programs need these; they have no effect.
        "vision.patch_size": lambda h: h.side // h.rows,
        "vision.feed_forward_length": lambda h: 4 * h.vit_width,
        "vision.attention.head_count": 8,
        "vision.block_count": 128,
    }

    config: Gemma3nConfig
    text: Text = gguf(hf=TEXT)
    head: Linear = gguf("output", "token_embd", hf=HEAD, shape=("width", None))
    vision: Vision | None = gguf("v", hf="model.vision_tower.timm_model")
    projector: Projector | None = gguf("mm", hf="model.embed_vision")
    audio: Audio | None = gguf("a", hf="model.audio_tower")
    audio_projector: AudioProjector | None = gguf("mm.a", hf="model.embed_audio")

    def validate(self) -> None:
        super().validate()
        h, text, rows = self.config, self.text, dict[str, tuple[int | None, Embedding]]()
        if self.vision and self.projector:
            check_images(h, self.vision)
            rows["vision.end"] = h.image_end, self.projector.tokens
            rows["vision.begin_token_id"] = h.image_begins, text.embed
        if self.audio and self.audio_projector:
            rows["audio.end"] = h.audio_end, self.audio_projector.tokens
            rows["audio.filler"] = h.audio_filler, self.audio_projector.tokens
            rows["audio.begin_token_id"] = h.audio_begins, text.embed
        for key, (row, table) in rows.items():
            if row is not None and not 0 <= row < (count := table.weight.dim(1)):
                raise ConfigError(f"{key} is {row} of {count} tokens")
        if len(h.cutoffs) != h.layers:
            raise ConfigError(f"{len(h.cutoffs)} activation_sparsity_scale for {h.layers} layers")
        if h.ffns != (widths := [layer.ffn.gate.weight.dim(1) for layer in text.layers]):
            raise ConfigError(f"feed_forward_length is {h.ffn_each}, and the tensors have {widths}")
        for i, layer in enumerate(text.layers[: max(0, h.layers - h.sharing)]):
            if None in (layer.attn.k, layer.attn.v, layer.attn.k_norm):
                raise ConfigError(
                    f"layer {i} has no keys and values of its own, but attention.shared_kv_layers "
                    f"says that only the last {h.sharing} of {h.layers} share those of others"
                )

    def caches(self) -> Sequence[CacheSpec]:
        h, scaled = self.config, self.text.rotary.rope(RopeType.NEOX)
        local = nn.Rope(h.rope_dims, h.local_base, type=RopeType.NEOX)
        ropes = [local if near else scaled for near in h.local]
        return share_last(Sliding.where(h.local, h.window, ropes), h.sharing)

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        return self.text(batch)

    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        return nn.softcap(self.head(self.states(ctx, batch)), self.config.softcap)

    # No more than become the rows that a sound has; transformers cuts off the rest.
    audio_samples = property(lambda m: min(30 * nn.AUDIO_RATE, m.config.row_samples))

    largest_image = property(lambda m: (m.config.side, m.config.side))
    image_shape = property(lambda m: (1, 3, m.config.side, m.config.side))

    def preprocess(self, image: Image) -> Prepared:
        """Pixels from 0 to 1; proportions are not kept."""
        h: Any = self.config
        scaled = resize(composite(image), (h.side, h.side), h.resample)
        return Prepared(normalize(scaled, h.image_mean, h.image_std)[None])

    def encode_multimodal(self, ctx: Context, image: Prepared) -> list[Multimodal]:
        """Rows of the image, and that of the token that ends it."""
        assert self.vision and self.projector
        h = self.config
        values = ctx.feed(lambda image: image.values[0], DType.F32, h.side, h.side, 3)
        rows, end = self.projector(ctx, self.vision(values))
        return [Multimodal(rows), Multimodal(end, {"token": h.image_ends})]

    def encode_audio(self, ctx: Context, spectrum: Prepared) -> list[Multimodal]:
        """Rows of the sound, and that of the token that ends it."""
        assert self.audio and self.audio_projector
        rows, end = self.audio_projector(ctx, self.audio(ctx, self.spectrum(ctx, spectrum)))
        return [Multimodal(rows), Multimodal(end, {"token": self.config.audio_ends})]

    def image_inputs(self, image: list[MultimodalEmbedding]) -> list[Input | str]:
        """Rows have the embedding of padding, token 0, in each layer."""
        h, (rows, end) = self.config, image
        begin = h.image_begins if rows.kind == "image" else h.audio_begins
        return ["\n\n", Input(begin), *rows.inputs(0), Input(0, end), "\n\n"]

    audio_inputs: Any = image_inputs
