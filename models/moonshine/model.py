"""Moonshine: a decoder of text that attends to an encoder of a sound's samples, of as many rows as
the sound is long; rotary positions in both."""

from __future__ import annotations

import numpy as np

from ggmodel import DType, Module, Tensor, gguf, nn, register
from ggmodel.audio import Audio
from ggmodel.errors import AudioError
from ggmodel.kvcache import CacheSpec, Causal, Cross, LayerObjects
from ggmodel.ml import Context
from ggmodel.model import (
    Batch,
    Input,
    LayerMemory,
    Multimodal,
    MultimodalEmbedding,
    Part,
    Prepared,
    SpeechPrompt,
)
from ggmodel.nn import Conv1D, Embedding, LayerNorm, Linear

from .config import RATE, SECONDS, STEPS, MoonshineConfig, rows_of


class EncoderAttention(nn.Attention):
    def forward(self, x: Tensor, rope: nn.Rope, positions: Tensor) -> Tensor:
        """Every row sees all rows."""
        q, k, v = self.project(x)
        q, k = rope(q, positions), rope(k, positions)
        y = q.scaled_dot_product_attention(k, v, scale=self.config.scale)
        return self.out(y.reshape(self.config.width, -1))


class EncoderLayer(Module):
    config: MoonshineConfig
    attn_norm: LayerNorm = gguf("attn_norm", hf="input_layernorm", shape=("width",))
    attn: EncoderAttention = gguf(hf="self_attn")
    ffn_norm: LayerNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("width",))
    up: Linear = gguf("ffn_up", hf="mlp.fc1", shape=("width", "ffn"))
    down: Linear = gguf("ffn_down", hf="mlp.fc2", shape=("ffn", "width"))

    def forward(self, x: Tensor, rope: nn.Rope, positions: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), rope, positions)
        return x + self.down(nn.activate(self.config.audio_activation, self.up(self.ffn_norm(x))))


class WholeNorm(Module):
    """(x − mean) / √(variance + eps) over all channels and rows, then a weight and a bias of each
    channel. As a field: shape=(channels,)."""

    dims = {"weight": (0,), "bias": (0,)}

    weight: Tensor = gguf("weight")
    bias: Tensor = gguf("bias")

    def forward(self, x: Tensor, eps: float) -> Tensor:
        """x [n, channels] → the same."""
        n, channels = x.dim(0), x.dim(1)
        y = x.reshape(n * channels).layer_norm(None, None, eps).reshape(n, channels)
        return y * self.weight.reshape(1, -1) + self.bias.reshape(1, -1)


class Encoder(Module):
    config: MoonshineConfig
    conv1: Conv1D = gguf("conv1d.1", hf="conv1", shape=(STEPS[0][0], 1, "width"))
    whole_norm: WholeNorm = gguf("conv_norm", hf="groupnorm", shape=("width",))
    conv2: Conv1D = gguf("conv1d.2", hf="conv2", shape=(STEPS[1][0], "width", "twice_width"))
    conv3: Conv1D = gguf("conv1d.3", hf="conv3", shape=(STEPS[2][0], "twice_width", "width"))
    layers: list[EncoderLayer] = gguf("blk", hf="layers", n="audio_layers")
    norm: LayerNorm = gguf("post_ln", hf="layer_norm", shape=("width",))

    def forward(self, ctx: Context, samples: Tensor, rope: nn.Rope) -> Tensor:
        """Samples [n, 1] → [width, rows]."""
        x = self.whole_norm(self.conv1(samples, stride=STEPS[0][1]).tanh(), self.config.eps)
        x = self.conv2(x, stride=STEPS[1][1]).gelu_erf()
        x = self.conv3(x, stride=STEPS[2][1]).gelu_erf().permute(1, 0).contiguous()
        positions = ctx.constant(np.arange(x.dim(1)))
        for layer in self.layers:
            x = layer(x, rope, positions)
        return self.norm(x)


class CrossAttention(nn.Attention):
    def forward(self, x: Tensor, sound: Tensor | None, cache: LayerObjects) -> Tensor:
        h = self.config
        k, v = (
            None if sound is None else p(sound).reshape(h.head_dim, h.heads, -1)
            for p in (self.k, self.v)
        )
        q = self.q(x).reshape(h.head_dim, h.heads, -1)
        return self.out(nn.attention(q, k, v, cache, scale=h.scale))


class MLP(nn.EncoderMLP):
    up: Linear = gguf("ffn_up", hf=Part("fc1", 0, ("ffn", "ffn")), shape=("width", "ffn"))
    gate: Linear = gguf("ffn_gate", hf=Part("fc1", 1, ("ffn", "ffn")), shape=("width", "ffn"))


class Layer(Module):
    attn_norm: LayerNorm = gguf("attn_norm", hf="input_layernorm", shape=("width",))
    attn: nn.Attention = gguf(hf="self_attn")
    cross_norm: LayerNorm = gguf("cross_attn_norm", hf="post_attention_layernorm", shape=("width",))
    cross: CrossAttention = gguf(prefix="cross_", hf="encoder_attn")
    ffn_norm: LayerNorm = gguf("ffn_norm", hf="final_layernorm", shape=("width",))
    ffn: MLP = gguf(hf="mlp")

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        caches: tuple[LayerMemory, LayerObjects],
        outputs: Tensor | None,
    ) -> Tensor:
        own, sounds = caches
        x = x + self.attn(self.attn_norm(x), batch, own)
        if not sounds.skipped:
            y = self.cross(self.cross_norm(x), batch.multimodal, sounds)
            x = x + y * sounds.seen  # zero for rows that hear nothing
        (x,) = nn.keep_rows(outputs, x)
        return x + self.ffn(self.ffn_norm(x))


@register("moonshine", hf="MoonshineForConditionalGeneration")
class Moonshine(nn.AudioModel):
    audio_marker = "<s>"

    config: MoonshineConfig
    embed: Embedding = gguf("token_embd", hf="model.decoder.embed_tokens", shape=("width", None))
    layers: list[Layer] = gguf("blk", hf="model.decoder.layers", n="layers")
    norm: LayerNorm = gguf("output_norm", hf="model.decoder.norm", shape=("width",))
    head: Linear = gguf("output", "token_embd", hf="proj_out", shape=("width", None))
    encoder: Encoder = gguf("a", hf="model.encoder")
    rotary: nn.Rotary

    def caches(self) -> list[tuple[CacheSpec, ...]]:
        sounds = Cross(rows=rows_of(self.audio_samples))
        return [(Causal(self.rotary.rope()), sounds)] * self.config.layers

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs)
        for layer, caches, outputs in batch.through(self.layers):
            x = layer(x, batch, caches, outputs)
        return self.norm(x)

    has_audio = property(lambda m: True)
    audio_samples = SECONDS * RATE
    audio_shape = (1, "samples")

    def prepare_audio(self, sound: Audio) -> Prepared:
        """The samples as they are, [1, samples]."""
        samples = self.samples_of(sound)
        if rows_of(len(samples)) < 1:
            raise AudioError(f"the sound has {len(samples)} samples, too few for a row; give more")
        return Prepared(samples[None])

    def encode_audio(self, ctx: Context, sound: Prepared) -> list[Multimodal]:
        x = ctx.feed(lambda sound: sound.values, DType.F32, sound.values.shape[1], 1)
        return [Multimodal(self.encoder(ctx, x, self.rotary.rope()))]

    def audio_inputs(self, sound: list[MultimodalEmbedding]) -> list[Input]:
        """The decoder begins with this token, from whose position on it hears the sound."""
        return [Input(self.config.start, sound[0])]

    def speech(self) -> SpeechPrompt:
        """The sound alone; each model has one language."""
        return SpeechPrompt((), (), "", ())
