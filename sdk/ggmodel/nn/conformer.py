"""The Conformer of encoders of sounds (arXiv 2005.08100): local attention, whose scores have a part
for the distance of two rows (arXiv 1901.02860), a feed-forward part before it and behind, and a
depthwise convolution. Names are those of llama.cpp's files and of transformers' Gemma 3n and 4.

It reads the config's `mels`, `audio_width`, `audio_heads`, `audio_ffn`, `audio_eps`,
`audio_residual` and `audio_activation`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, ClassVar

import numpy as np

from ..audio import Audio, gemma_mel
from ..errors import AudioError, ConfigError, PromptError
from ..ml import Context, DType, Tensor
from ..model.module import Module, gguf
from ..model.multimodal import Prepared
from .audio import AUDIO_HOP, AUDIO_RATE, AudioModel
from .layers import Linear, RMSNorm, activate

MOST_NEARBY = 64  # rows before or behind one; published encoders see 12, half a second
CONFORMER_EPS = 1e-6  # of the norms that no key says it of
_HIDDEN = -1e9  # added to the scores of rows that are not seen


class LocalAttention:
    """Attention among n rows, of which each sees `past` ones before it, itself, and `ahead` ones
    behind it.

    Rows are cut into blocks, each of which sees itself and its neighbours: time and memory grow
    with n, not with its square.

    Args:
        n: rows.
        cap: bounds scores by cap · tanh(score / cap).
        width: of the rows of `distances`.

    Attributes:
        distances: sines and cosines of the distances, the largest past one first, F32
            [width, past + 1 + ahead]. Half of the frequencies, from 1 to 1e-4, are sines'
            (arXiv 1706.03762).
    """

    distances: Tensor

    def __init__(self, ctx: Context, n: int, past: int, ahead: int, cap: float, width: int):
        self.n, self.past, self.ahead, self.cap = n, past, ahead, cap
        self.distances = ctx.constant(_sinusoids(past, ahead, width), DType.F32)
        self._mask = ctx.constant(self._hidden(), DType.F32)

    @property
    def _block(self) -> int:
        return max(self.past, self.ahead, 1)

    @property
    def _blocks(self) -> int:
        return -(-self.n // self._block)

    @property
    def _span(self) -> int:
        """Rows of a block and of those beside it."""
        return self._block * (3 if self.ahead else 2)

    def _hidden(self) -> np.ndarray:
        """The numbers added to scores: [blocks, block, span]."""
        size, blocks = self._block, self._blocks
        rows = np.arange(size * blocks).reshape(blocks, size, 1)
        keys = np.arange(self._span) - size + np.arange(blocks)[:, None, None] * size
        far = (keys < rows - self.past) | (keys > rows + self.ahead)
        return np.where(far | (keys < 0) | (keys >= self.n), _HIDDEN, 0).astype(np.float32)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, relative: Tensor) -> Tensor:
        """softmax(cap(K·q + R·q)) · V for each head.

        Args:
            q, k, v: [head dim, heads, n] F32; the scale is in q.
            relative: R [head dim, heads, past + 1 + ahead], a map of `distances`.

        Returns:
            [head dim · heads, n] F32.
        """
        d, heads, size, blocks = q.dim(0), q.dim(1), self._block, self._blocks
        rows = q.permute(0, 2, 1).contiguous().pad(0, size * blocks - self.n)
        rows = rows.reshape(d, size, blocks, heads)
        scores = self._beside(k).mulmat(rows) + self._by_distance(rows, relative)
        scores = scores.scale(1 / self.cap).tanh().scale(self.cap)
        values = self._beside(v).permute(1, 0, 2, 3).contiguous()
        y = values.mulmat((scores + self._mask).softmax())
        y = y.permute(0, 2, 3, 1).contiguous(d * heads, size * blocks)
        return y if size * blocks == self.n else y.slice(1, 0, self.n).contiguous()

    def _beside(self, x: Tensor) -> Tensor:
        """[head dim, heads, n] → [head dim, span, blocks, heads]: for each block its rows and those
        of its neighbours, zeros beyond the ends."""
        d, heads, size, blocks = x.dim(0), x.dim(1), self._block, self._blocks
        beside = self._span // size
        total = (blocks + beside - 1) * size
        # The zeros that come first are rolled there from the end.
        x = x.permute(0, 2, 1).contiguous().pad(0, total - self.n).roll(0, size)
        x = x.reshape(d, size, blocks + beside - 1, heads)
        first, *others = (x.slice(2, i, i + blocks) for i in range(beside))
        return first.stack(1, *others)

    def _by_distance(self, rows: Tensor, relative: Tensor) -> Tensor:
        """Scores of distances, each in the place of its key: [span, block, blocks, heads]."""
        d, size, blocks, heads = rows.ne
        relative = relative.permute(0, 2, 1).contiguous()
        scores = relative.mulmat(rows.reshape(d, size * blocks, heads))
        scores = scores.reshape(relative.dim(1), size, blocks, heads)
        # Rows one longer than there are keys: reading them without the surplus moves row i by i.
        scores = scores.pad(self._span + 1 - relative.dim(1)).roll(size - self.past)
        scores = scores.reshape((self._span + 1) * size, blocks, heads)
        scores = scores.slice(0, 0, self._span * size).contiguous()
        return scores.reshape(self._span, size, blocks, heads)


def _sinusoids(past: int, ahead: int, width: int) -> np.ndarray:
    half = width // 2
    rates = np.exp(np.arange(half) * (-np.log(1e4) / max(half - 1, 1)))
    angles = np.arange(past, -ahead - 1, -1)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


class ConformerFeedForward(Module):
    """x + residual · norm(down(activation(up(norm(x))))), for each row."""

    norm: RMSNorm = gguf("ffn_norm", hf="pre_layer_norm", shape=("audio_width",))
    up: Linear = gguf("ffn_up", hf="ffw_layer_1", shape=("audio_width", "audio_ffn"))
    down: Linear = gguf("ffn_down", hf="ffw_layer_2", shape=("audio_ffn", "audio_width"))
    post_norm: RMSNorm = gguf("ffn_post_norm", hf="post_layer_norm", shape=("audio_width",))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        h, eps = self.config, CONFORMER_EPS
        y = self.down(activate(h.audio_activation, self.up(self.norm(x, eps))))
        return x + self.post_norm(y, eps).scale(h.audio_residual)


class ConformerConv(Module):
    """A depthwise convolution of each row with those before it, behind a gate."""

    norm: RMSNorm = gguf("conv_norm", hf="pre_layer_norm", shape=("audio_width",))
    into: Linear = gguf("conv_pw1", hf="linear_start", shape=("audio_width", None))
    taps: Tensor = gguf(
        "conv_dw.weight", hf="depthwise_conv1d.weight", shape=(None, 1, "audio_width")
    )
    conv_norm: RMSNorm = gguf("norm_conv", hf="conv_norm", shape=("audio_width",))
    out: Linear = gguf("conv_pw2", hf="linear_end", shape=("audio_width", "audio_width"))

    def forward(self, x: Tensor) -> Tensor:
        """x [width, n] → [width, n]."""
        h, taps = self.config, self.taps.dim(0)
        value, gate = self.into(self.norm(x, h.audio_eps)).chunk(0, h.audio_width)
        y = (value.contiguous() * gate.sigmoid()).permute(1, 0).contiguous()
        y = y.pad(taps - 1).roll(taps - 1)  # zeros come first
        y = y.ssm_conv(self.taps.reshape(taps, h.audio_width))
        return x + self.out(activate(h.audio_activation, self.conv_norm(y, h.audio_eps)))


def mel_features(mel: Callable[..., Any]) -> dict[str, Any]:
    """The keys of a spectrum's feature extractor, for `Config.fixed`.

    Args:
        mel: `audio.gemma_mel`, or a `functools.partial` of it with other defaults.
    """
    of = {name: parameter.default for name, parameter in signature(mel).parameters.items()}
    return {
        "features:dither": 0.0,
        "features:fft_overdrive": of["n_fft"] >= 2 * of["frame"],
        "features:frame_length_ms": 1000 * of["frame"] / AUDIO_RATE,
        "features:hop_length_ms": 1000 * AUDIO_HOP / AUDIO_RATE,
        "features:input_scale_factor": 1.0,
        "features:max_frequency": of["high"],
        "features:mel_floor": of["floor"],
        "features:min_frequency": of["low"],
        "features:padding_value": 0.0,
        "features:preemphasis": of["preemphasis"],
        "features:preemphasis_htk_flavor": True if of["preemphasis"] else ...,
        "features:sampling_rate": AUDIO_RATE,
    }


class ConformerModel(AudioModel):
    """The way from sounds to the spectra of a Conformer, the field `audio`.

    Attributes:
        mel: makes the spectra, `audio.gemma_mel` or a partial of it.
    """

    mel: ClassVar[Callable[..., Any]] = staticmethod(gemma_mel)
    audio_shape: Any = property(lambda m: ("frames", m.config.mels))

    def validate(self) -> None:
        """
        Raises:
            ConfigError: mels make other rows, behind two convolutions that halve them, than the
                projection takes.
        """
        audio: Any = getattr(self, "audio", None)
        if audio is None:
            return
        mels, flat = self.config.mels, audio.into.weight.dim(0)
        channels = audio.conv1.conv.weight.dim(3)
        if channels * -(-mels // 4) != flat:
            raise ConfigError(
                f"audio.num_mel_bins is {mels}, and {channels} channels of {flat} numbers have "
                f"{4 * flat // max(channels, 1)}"
            )

    def prepare_audio(self, sound: Audio) -> Prepared:
        """The spectrum float32 [frames, mels] of the frames that are all sound."""
        values, heard = self.mel(self.samples_of(sound), self.config.mels)
        if not heard.any():
            raise AudioError(f"a sound of {sound.seconds:.3f} s is shorter than a frame")
        return Prepared(values[heard])

    def spectrum(self, ctx: Context, item: Prepared) -> Tensor:
        """The graph input of a spectrum, F32 [mels, frames].

        Raises:
            PromptError: it has more frames than a sound may.
        """
        frames, most = len(item.values), self.audio_samples // AUDIO_HOP
        if frames > most:
            raise PromptError(f"a spectrum of {frames} frames; this model takes up to {most}")
        return ctx.feed(lambda item: item.values, DType.F32, self.config.mels, frames)
