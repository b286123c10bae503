"""Whisper: a decoder of text that attends to an encoder of 30 seconds of sound."""

from __future__ import annotations

from ggmodel import Module, Tensor, gguf, nn, register
from ggmodel.audio import Audio, whisper_mel
from ggmodel.kvcache import CacheSpec, Causal, Cross, LayerObjects
from ggmodel.ml import Context, DType
from ggmodel.model import (
    Batch,
    Input,
    LayerMemory,
    Multimodal,
    MultimodalEmbedding,
    Prepared,
    Speech,
)
from ggmodel.nn import Embedding, LayerNorm, Linear

from .attention import CrossAttention, SelfAttention
from .config import EPS, WhisperConfig
from .speech import speech_of


class Layer(Module):
    config: WhisperConfig
    attn_norm: LayerNorm = gguf("attn_norm", hf="self_attn_layer_norm", shape=("width",))
    attn: SelfAttention = gguf(hf="self_attn")
    cross_norm: LayerNorm = gguf("cross_attn_norm", hf="encoder_attn_layer_norm", shape=("width",))
    cross: CrossAttention = gguf(prefix="cross_", hf="encoder_attn")
    ffn_norm: LayerNorm = gguf("ffn_norm", hf="final_layer_norm", shape=("width",))
    up: Linear = gguf("ffn_up", hf="fc1", shape=("width", "ffn"))
    down: Linear = gguf("ffn_down", hf="fc2", shape=("ffn", "width"))

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        caches: tuple[LayerMemory, LayerObjects],
        outputs: Tensor | None,
    ) -> Tensor:
        own, sounds = caches
        x = x + self.attn(self.attn_norm(x, EPS), own)
        if not sounds.skipped:
            y = self.cross(self.cross_norm(x, EPS), batch.multimodal, sounds)
            x = x + y * sounds.seen  # zero for rows that hear nothing
        (x,) = nn.keep_rows(outputs, x)
        y = self.up(self.ffn_norm(x, EPS))
        return x + self.down(nn.activate(self.config.activation, y))


@register("whisper", hf="WhisperForConditionalGeneration")
class Whisper(nn.AudioModel):
    audio_marker = "<|startoftranscript|>"
    audio_advice = "transcribe takes longer ones in segments (ggmodel transcribe)"

    config: WhisperConfig
    embed: Embedding = gguf("token_embd", hf="model.decoder.embed_tokens", shape=("width", None))
    places: Embedding = gguf(
        "position_embd", hf="model.decoder.embed_positions", shape=("width", "context")
    )
    layers: list[Layer] = gguf("blk", hf="model.decoder.layers", n="layers")
    norm: LayerNorm = gguf("output_norm", hf="model.decoder.layer_norm", shape=("width",))
    head: Linear = gguf("output", "token_embd", hf="proj_out", shape=("width", None))
    encoder: nn.AudioEncoder = gguf("a", hf="model.encoder")

    def caches(self) -> list[tuple[CacheSpec, ...]]:
        sounds = Cross(rows=self.config.positions)
        return [(Causal(absolute=True), sounds)] * self.config.layers

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs) + self.places(batch.positions)
        for layer, caches, outputs in batch.through(self.layers):
            x = layer(x, batch, caches, outputs)
        return self.norm(x, EPS)

    has_audio = property(lambda m: True)

    def prepare_audio(self, sound: Audio) -> Prepared:
        samples = self.samples_of(sound)
        return Prepared(whisper_mel(samples, self.config.mels, length=self.audio_samples))

    def encode_audio(self, ctx: Context, spectrum: Prepared) -> list[Multimodal]:
        h = self.config
        x = ctx.feed(lambda spectrum: spectrum.values, DType.F32, h.frames, h.mels)
        return [Multimodal(self.encoder(x))]

    def audio_inputs(self, sound: list[MultimodalEmbedding]) -> list[Input]:
        """The decoder begins with this token, from whose position on it hears the sound."""
        return [Input(self.config.start, sound[0])]

    def speech(self) -> Speech:
        return speech_of(self.config, self.tokenizer)
