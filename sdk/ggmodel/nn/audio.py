"""Whisper's encoder, which other models have before their text, under the names that llama.cpp's
files have for it.

It reads the config's `mels`, `positions`, `audio_layers`, `audio_width`, `audio_ffn`,
`audio_heads`, `audio_eps` and `audio_activation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..audio import Audio, open_audio, resample
from ..errors import AudioError, Unsupported
from ..ml import Context, Tensor
from ..model.config import Config
from ..model.model import Model
from ..model.module import Module, encoder_kv, gguf, kv
from ..model.multimodal import Input, Modality, Multimodal, MultimodalEmbedding, Numbers, Prepared
from ..model.operations import Reshape
from ..model.source_code import line_of
from .layers import Conv1D, LayerNorm, Linear, activate, activation

AUDIO_RATE = 16_000  # samples a second
AUDIO_HOP = 160  # samples from frame to frame
_FRAME = 400  # samples in one


def whisper_features(part: str = "") -> dict[str, Any]:
    """The keys of Whisper's feature extractor, and their only values, for `Config.fixed`.

    Args:
        part: of config.json, which has the encoder's keys.
    """

    def of(key: str) -> Any:
        return lambda hf: (hf.get(part) or {} if part else hf).get(key)

    places, mels = of("max_source_positions"), of("num_mel_bins")
    return {
        "features:chunk_length": lambda hf: 2 * (places(hf) or 1500) * AUDIO_HOP // AUDIO_RATE,
        "features:dither": 0.0,
        "features:feature_size": lambda hf: mels(hf) or 128,
        "features:hop_length": AUDIO_HOP,
        "features:n_fft": _FRAME,
        "features:padding_value": 0.0,
        "features:return_attention_mask": ...,  # a model asks for what it needs
        "features:sampling_rate": AUDIO_RATE,
    }


audio_kv = partial(encoder_kv, "audio")
"""A hyperparameter of an encoder of sounds: `audio_kv("block_count", "num_hidden_layers")`."""


class AudioConfig(Config):
    """The hyperparameters of a model of text with such an encoder, as audio_config has them. The
    usual ones are those of Whisper's large ones."""

    fixed = {**whisper_features("audio_config"), "audio_config.scale_embedding": False}

    mels: int = audio_kv("num_mel_bins", "num_mel_bins", usual=128, least=1)
    # llama.cpp's files have none.
    positions: int = kv(
        "audio.context_length", hf="audio_config.max_source_positions", default=1500, least=1
    )
    audio_layers: int = audio_kv("block_count", ("num_hidden_layers", "encoder_layers"), usual=32)
    audio_width: int = audio_kv("embedding_length", ("hidden_size", "d_model"), usual=1280, least=1)
    audio_ffn: int = audio_kv(
        "feed_forward_length", ("intermediate_size", "encoder_ffn_dim"), usual=5120, least=1
    )
    audio_heads: int = audio_kv(
        "attention.head_count",
        ("num_attention_heads", "encoder_attention_heads"),
        usual=20,
        least=1,
        divides="audio_width",
    )
    # All norms have it; no key of config.json says it.
    audio_eps: float = kv("audio.attention.layer_norm_epsilon", default=1e-5)
    audio_activation: str = activation(
        "gelu", "audio_config.activation_function", "audio.hidden_activation"
    )
    frames = property(lambda h: 2 * h.positions)  # the second convolution halves them


class AudioModel(Model):
    """A model that takes sounds; a subclass writes the methods without a body.

    Attributes:
        audio_marker: the text that stands for a sound in prompts and chat templates.
        audio_data: the data beside a sound's prepared values; see `Modality.data`.
        audio_apart: windows of a sound do not depend on each other; see `Modality.apart`.
        audio_advice: for a sound that is too long.
        audio_shape: of a sound's prepared values, see `Modality.shape`; by default a spectrum of
            all frames that are heard at once.
        audio_samples: the most samples of a sound, `AUDIO_RATE` a second; by default those of all
            frames.
    """

    audio_marker: ClassVar[str] = ""
    audio_data: ClassVar[Mapping[str, Numbers] | None] = {}
    audio_apart: ClassVar[bool] = False
    audio_advice: ClassVar[str] = "give it in parts"

    def modalities(self) -> Mapping[str, Modality]:
        """The modalities of the other bases, and "audio" where it has the encoder."""
        if not self.has_audio:
            return super().modalities()
        sounds = Modality(
            marker=self.audio_marker,
            open=open_audio,
            prepare=self.prepare_audio,
            encode=self.encode_audio,
            inputs=self.audio_inputs,
            largest=self.largest_audio,
            shape=self.audio_shape,
            apart=self.audio_apart,
            data=self.audio_data,
        )
        return {**super().modalities(), "audio": sounds}

    @property
    def has_audio(self) -> bool:
        """Whether it takes sounds: by default whether the file fills the fields `audio` and
        `audio_projector`."""
        return all(getattr(self, name, None) is not None for name in ("audio", "audio_projector"))

    audio_shape: Any = property(lambda m: (m.config.mels, m.config.frames))
    audio_samples: Any = property(lambda m: m.config.frames * AUDIO_HOP)

    def largest_audio(self) -> Audio | Prepared:
        """A sound that needs the most memory; by default silence of the longest."""
        return Audio(np.zeros(self.audio_samples, np.float32), AUDIO_RATE)

    def samples_of(self, sound: Audio) -> NDArray[np.float32]:
        """A sound at `AUDIO_RATE`, [n].

        Raises:
            AudioError: it is longer than `audio_samples`.
        """
        most = self.audio_samples / AUDIO_RATE
        if sound.seconds > most:
            raise AudioError(
                f"the sound has {sound.seconds:,.1f} s, and this model hears {most:g} s at once; "
                f"{self.audio_advice}"
            )
        return resample(sound, AUDIO_RATE).samples[: self.audio_samples]

    def prepare_audio(self, sound: Audio) -> Prepared:
        """The spectrum of an opened sound."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no prepare_audio")

    def encode_audio(self, ctx: Context, spectrum: Prepared) -> list[Multimodal]:
        """Records the graph that encodes a sound, in a context of its own."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no encode_audio")

    def audio_inputs(self, sound: list[MultimodalEmbedding]) -> Sequence[Input | str]:
        """The inputs of one sound, as `image_inputs` gives those of an image."""
        raise Unsupported(f"{line_of(type(self))}: {type(self).__name__} has no audio_inputs")


class ColumnConv1D(Conv1D):
    """The same with a bias as llama.cpp adds it, [1, out]. As a field: shape=(length, in, out,
    1)."""

    dims = {"weight": (0, 1, 2), "bias": (3, 2)}

    bias: Tensor | None = gguf("bias", op=Reshape((0, 1), (0,)))


class AudioAttention(Module):
    """Every row sees all rows."""

    q: Linear = gguf("attn_q", hf="q_proj", shape=("audio_width", "audio_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("audio_width", "audio_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("audio_width", "audio_width"))
    out: Linear = gguf(
        "attn_output", "attn_out", hf="out_proj", shape=("audio_width", "audio_width")
    )

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        h = self.config
        dims = h.audio_width // h.audio_heads
        q, k, v = (p(x).reshape(dims, h.audio_heads, -1) for p in (self.q, self.k, self.v))
        y = q.scaled_dot_product_attention(k, v, scale=dims**-0.5)
        return self.out(y.reshape(h.audio_width, -1))


class AudioLayer(Module):
    """x + attn(norm(x)), then x + down(activation(up(norm(x))))."""

    attn_norm: LayerNorm = gguf(
        "attn_norm", "ln1", hf="self_attn_layer_norm", shape=("audio_width",)
    )
    attn: AudioAttention = gguf(hf="self_attn")
    ffn_norm: LayerNorm = gguf("ffn_norm", "ln2", hf="final_layer_norm", shape=("audio_width",))
    up: Linear = gguf("ffn_up", hf="fc1", shape=("audio_width", "audio_ffn"))
    down: Linear = gguf("ffn_down", hf="fc2", shape=("audio_ffn", "audio_width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        h = self.config
        x = x + self.attn(self.attn_norm(x, h.audio_eps))
        y = self.up(self.ffn_norm(x, h.audio_eps))
        return x + self.down(activate(h.audio_activation, y))


class AudioEncoder(Module):
    """Two convolutions, learned positions, layers, a norm."""

    conv1: Conv1D = gguf("conv1d.1", hf="conv1", shape=(3, "mels", "audio_width"))
    conv2: Conv1D = gguf("conv1d.2", hf="conv2", shape=(3, "audio_width", "audio_width"))
    positions: Tensor = gguf(
        "position_embd.weight", hf="embed_positions.weight", shape=("audio_width", "positions")
    )
    layers: list[AudioLayer] = gguf("blk", hf="layers", n="audio_layers")
    norm: LayerNorm = gguf("post_ln", hf="layer_norm", shape=("audio_width",))

    def forward(self, x: Tensor, rows: int | None = None, pooled: bool = False) -> Tensor:
        """A spectrum [frames, mels] → [width, rows].

        Args:
            rows: the first ones, which see only each other; None is all positions.
            pooled: pairs of rows become their mean before the norm; a last one alone is dropped.
        """
        x = self.conv1(x, pad=1).gelu_erf()
        x = self.conv2(x, stride=2, pad=1).gelu_erf()
        x = x.permute(1, 0).contiguous() + self.positions
        x = x if rows is None else x.slice(1, 0, rows)
        for layer in self.layers:
            x = layer(x)
        return self.norm(_pairs(x) if pooled else x, self.config.audio_eps)


def _pairs(x: Tensor) -> Tensor:
    """The means of pairs of rows: [width, n] → [width, n // 2]."""
    width, count = x.dim(0), x.dim(1) // 2
    pairs = x.slice(1, 0, 2 * count).reshape(width, 2, count)
    mean = (pairs.slice(1, 0, 1) + pairs.slice(1, 1, 2)).scale(0.5)
    return mean.reshape(width, count)


class ColumnAudioEncoder(AudioEncoder):
    """The same with biases as llama.cpp's files have them."""

    conv1: ColumnConv1D = gguf("conv1d.1", hf="conv1", shape=(3, "mels", "audio_width", 1))
    conv2: ColumnConv1D = gguf("conv1d.2", hf="conv2", shape=(3, "audio_width", "audio_width", 1))
