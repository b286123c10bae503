"""Whisper's encoder, which other models have before their text, under the names that llama.cpp's
files have for it.

It reads the config's `mels`, `positions`, `audio_layers`, `audio_width`, `audio_ffn`,
`audio_heads`, `audio_eps` and `audio_activation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..ml import Tensor
from ..model.config import Config
from ..model.module import Module, encoder_kv, gguf, kv
from ..model.operations import Operation
from .layers import Conv1D, LayerNorm, Linear, activate, activation

AUDIO_RATE = 16_000  # samples a second
AUDIO_HOP = 160  # samples from frame to frame
_FRAME = 400  # samples in one


def whisper_features(part: str = "") -> dict[str, Any]:
    """The keys of Whisper's feature extractor, and their only values, for `Config.assumed`.

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


class SoundConfig(Config):
    """The hyperparameters of a model of text with such an encoder, as audio_config has them. The
    usual ones are those of Whisper's large ones."""

    assumed = {
        **whisper_features("audio_config"),
        "audio_config.scale_embedding": False,
    }

    mels: int = audio_kv("num_mel_bins", "num_mel_bins", usual=128, least=1)
    positions: int = kv(  # llama.cpp's files have none
        "audio.context_length",
        hf="audio_config.max_source_positions",
        default=1500,
        least=1,
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
    )
    audio_eps: float = kv(  # of all norms; no key of config.json says it
        "audio.attention.layer_norm_epsilon",
        default=1e-5,
    )
    audio_activation: str = activation(
        "gelu",
        "audio_config.activation_function",
        "audio.hidden_activation",
    )
    frames = property(lambda h: 2 * h.positions)  # the second convolution halves them
    seconds = property(lambda h: h.frames * AUDIO_HOP / AUDIO_RATE)  # that are heard at once

    def check(self) -> None:
        """
        Raises:
            ConfigError: heads that do not divide the width.
        """
        if self.audio_width % self.audio_heads:
            raise ConfigError(
                f"{self.audio_heads} heads do not divide the encoder's width of {self.audio_width}"
            )


@dataclass(frozen=True)
class Column(Operation):
    """[n] in checkpoints, [n, 1] in files."""

    def shape(self, shape: tuple[int, ...], config: Any) -> tuple[int, ...]:
        return (*shape, 1)

    def to_gguf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x[..., None]

    def to_hf(self, x: np.ndarray, config: Any) -> np.ndarray:
        return x[..., 0]


class ColumnConv1D(Conv1D):
    """The same with a bias as llama.cpp adds it, [1, out]. As a field: shape=(length, in, out,
    1)."""

    dims = {"weight": (0, 1, 2), "bias": (3, 2)}

    bias: Tensor | None = gguf("bias", op=Column())


class SoundAttention(Module):
    """Every row sees all rows."""

    config: Any
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


class SoundLayer(Module):
    """x + attn(norm(x)), then x + down(activation(up(norm(x))))."""

    config: Any
    attn_norm: LayerNorm = gguf(
        "attn_norm", "ln1", hf="self_attn_layer_norm", shape=("audio_width",)
    )
    attn: SoundAttention = gguf(hf="self_attn")
    ffn_norm: LayerNorm = gguf("ffn_norm", "ln2", hf="final_layer_norm", shape=("audio_width",))
    up: Linear = gguf("ffn_up", hf="fc1", shape=("audio_width", "audio_ffn"))
    down: Linear = gguf("ffn_down", hf="fc2", shape=("audio_ffn", "audio_width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        h = self.config
        x = x + self.attn(self.attn_norm(x, h.audio_eps))
        y = self.up(self.ffn_norm(x, h.audio_eps))
        return x + self.down(activate(h.audio_activation, y))


class SoundEncoder(Module):
    """Two convolutions, learned positions, layers, a norm."""

    config: Any
    conv1: Conv1D = gguf("conv1d.1", hf="conv1", shape=(3, "mels", "audio_width"))
    conv2: Conv1D = gguf("conv1d.2", hf="conv2", shape=(3, "audio_width", "audio_width"))
    positions: Tensor = gguf(
        "position_embd.weight", hf="embed_positions.weight", shape=("audio_width", "positions")
    )
    layers: list[SoundLayer] = gguf("blk", hf="layers", n="audio_layers")
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


class ColumnSoundEncoder(SoundEncoder):
    """The same with biases as llama.cpp's files have them."""

    conv1: ColumnConv1D = gguf("conv1d.1", hf="conv1", shape=(3, "mels", "audio_width", 1))
    conv2: ColumnConv1D = gguf("conv1d.2", hf="conv2", shape=(3, "audio_width", "audio_width", 1))
