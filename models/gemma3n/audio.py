"""Gemma 3n's encoder of sounds: two convolutions over a spectrum, then a Conformer that sees half a
second back (arXiv 2303.01037)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmodel import Context, Module, Tensor, gguf, nn
from ggmodel.ml import DType
from ggmodel.nn import Conv2D, Embedding, Linear, RMSNorm

from .config import Gemma3nConfig

EPS = 1e-6  # of the norms that no key says it of


@dataclass(frozen=True)
class Place:
    """The distances of the rows of a sound, and which of them see each other.

    Attributes:
        timing: of the distances, F32 [width, distances].
        mask: see `nn.Nearby.mask`.
    """

    near: nn.Nearby
    timing: Tensor
    mask: Tensor


class SoundConv(Module):
    """A convolution that halves frames and mels, and a norm over all of both so far."""

    config: Gemma3nConfig
    conv: Conv2D = gguf("", hf="conv", shape=(3, 3, None, None))
    norm: Tensor = gguf("norm.weight", hf="norm.weight", shape=(None,))

    def forward(self, x: Tensor) -> Tensor:
        """x [mels, frames, in] → [mels / 2, frames / 2, out]; frames see the next two."""
        x = self.conv.weight.conv_2d(x.pad(0, 2), 2, 2, 1, 0)
        mels, frames, channels = x.dim(0), x.dim(1), x.dim(2)
        x = x.permute(1, 2, 0).contiguous(channels * mels, frames)
        seen = x.sum_rows().reshape(frames)
        seen = seen.fill(channels * mels).cumsum().reshape(1, frames)
        x = x - self._so_far(x) / seen
        x = x / self._root(self._so_far(x.sqr()) / seen)
        x = x.reshape(channels, mels, frames) * self.norm
        return x.permute(2, 0, 1).contiguous().relu()

    def _so_far(self, x: Tensor) -> Tensor:
        """The sum of a row and all before it: [a, n] → [1, n]."""
        return x.sum_rows().reshape(x.dim(1)).cumsum().reshape(1, x.dim(1))

    def _root(self, variance: Tensor) -> Tensor:
        return (variance + variance.fill(self.config.audio_conv_eps)).sqrt()


class SoundAttention(Module):
    config: Gemma3nConfig
    norm: RMSNorm = gguf("ln1", hf="pre_attn_norm", shape=("audio_width",))
    q: Linear = gguf("attn_q", hf="attn.q_proj", shape=("audio_width", "audio_width"))
    k: Linear = gguf("attn_k", hf="attn.k_proj", shape=("audio_width", "audio_width"))
    v: Linear = gguf("attn_v", hf="attn.v_proj", shape=("audio_width", "audio_width"))
    scale: Tensor = gguf("per_dim_scale", hf="attn.per_dim_scale", shape=("audio_head_dim",))
    relative: Linear = gguf(
        "linear_pos",
        hf="attn.relative_position_embedding.pos_proj",
        shape=("audio_width", "audio_width"),
    )
    out: Linear = gguf("attn_out", hf="post", shape=("audio_width", "audio_width"))
    post_norm: RMSNorm = gguf("ln2", hf="post_norm", shape=("audio_width",))

    def forward(self, x: Tensor, place: Place) -> Tensor:
        """x [width, n] → [width, n]."""
        h, y = self.config, self.norm(x, EPS)
        d, heads = h.audio_head_dim, h.audio_heads
        q, k, v = (part(y).reshape(d, heads, -1) for part in (self.q, self.k, self.v))
        q = q * self.scale.softplus().scale(d**-0.5 / math.log(2))  # softplus(0) is ln 2
        relative = self.relative(place.timing).reshape(d, heads, -1)
        y = place.near.attend(q, k, v, relative, place.mask)
        return x + self.post_norm(self.out(y), EPS)


class SoundFeedForward(Module):
    config: Gemma3nConfig
    norm: RMSNorm = gguf("ffn_norm", hf="pre_layer_norm", shape=("audio_width",))
    up: Linear = gguf("ffn_up", hf="ffw_layer_1", shape=("audio_width", "audio_ffn"))
    down: Linear = gguf("ffn_down", hf="ffw_layer_2", shape=("audio_ffn", "audio_width"))
    post_norm: RMSNorm = gguf("ffn_post_norm", hf="post_layer_norm", shape=("audio_width",))

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.up(self.norm(x, EPS)).silu())
        return x + self.post_norm(y, EPS).scale(self.config.audio_residual)


class SoundMixing(Module):
    """Each channel is mixed with its last values, behind a gate."""

    config: Gemma3nConfig
    norm: RMSNorm = gguf("conv_norm", hf="pre_layer_norm", shape=("audio_width",))
    into: Linear = gguf("conv_pw1", hf="linear_start", shape=("audio_width", None))
    taps: Tensor = gguf(
        "conv_dw.weight", hf="depthwise_conv1d.weight", shape=(None, 1, "audio_width")
    )
    mixed_norm: RMSNorm = gguf("norm_conv", hf="conv_norm", shape=("audio_width",))
    out: Linear = gguf("conv_pw2", hf="linear_end", shape=("audio_width", "audio_width"))

    def forward(self, x: Tensor) -> Tensor:
        h, taps = self.config, self.taps.dim(0)
        value, gate = self.into(self.norm(x, h.audio_eps)).chunk(0, h.audio_width)
        y = (value.contiguous() * gate.sigmoid()).permute(1, 0).contiguous()
        y = y.pad(taps - 1).roll(taps - 1)  # zeros come first
        y = y.ssm_conv(self.taps.reshape(taps, h.audio_width))
        return x + self.out(self.mixed_norm(y, h.audio_eps).silu())


class SoundLayer(Module):
    config: Gemma3nConfig
    first: SoundFeedForward = gguf(hf="ffw_layer_start")
    attn: SoundAttention = gguf(hf="attention")
    mixing: SoundMixing = gguf(hf="lconv1d")
    last: SoundFeedForward = gguf(suffix="_1", hf="ffw_layer_end")
    norm: RMSNorm = gguf("layer_pre_norm", hf="norm", shape=("audio_width",))

    def forward(self, x: Tensor, place: Place) -> Tensor:
        """x [width, n] → [width, n]."""
        x = self.mixing(self.attn(self.first(x), place))
        return self.norm(self.last(x), EPS)


class Audio(Module):
    config: Gemma3nConfig
    conv0: SoundConv = gguf("conv1d.0", hf="subsample_conv_projection.conv_0")
    conv1: SoundConv = gguf("conv1d.1", hf="subsample_conv_projection.conv_1")
    into: Linear = gguf(
        "pre_encode.out",
        hf="subsample_conv_projection.input_proj_linear",
        shape=(None, "audio_width"),
    )
    layers: list[SoundLayer] = gguf("blk", hf="conformer", n="audio_layers")

    def forward(self, ctx: Context, x: Tensor) -> Tensor:
        """A spectrum [mels, frames] → [width, rows]."""
        h = self.config
        x = self.conv1(self.conv0(x.reshape(x.dim(0), x.dim(1), 1)))
        # Channels vary fastest.
        x = self.into(x.permute(1, 2, 0).contiguous(x.dim(0) * x.dim(2), x.dim(1)))
        near = nn.Nearby(x.dim(1), h.audio_past, h.audio_ahead, h.audio_cap)
        place = Place(near, near.timing(ctx, h.audio_width), near.mask(ctx))
        for layer in self.layers:
            x = layer(x, place)
        return x.slice(1, 0, x.dim(1), h.audio_reduction).contiguous()


class AudioProjector(Module):
    """Rows of a sound as the text takes them: as many for each, tokens fill them up."""

    # The reference's looks up each token of a text first, in vain.
    compared = False

    config: Gemma3nConfig
    tokens: Embedding = gguf("embedding", hf="embedding", shape=("audio_width", None))
    token_norm: RMSNorm = gguf("hard_emb_norm", hf="hard_embedding_norm", shape=("audio_width",))
    norm: RMSNorm = gguf("soft_emb_norm", hf="soft_embedding_norm", shape=("audio_width",))
    proj: Linear = gguf(
        "input_projection", hf="embedding_projection", shape=("audio_width", "width")
    )

    def forward(self, ctx: Context, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [audio width, n] → [width, rows], and the token that ends a sound, [width, 1]."""
        h, count = self.config, x.dim(1)
        filled, last = h.audio_rows - count, self.tokens.weight.dim(1) - 1
        ids = ctx.feed(
            lambda _: [last if h.audio_filler is None else h.audio_filler, h.audio_end],
            DType.I32,
            2,
        )
        eps = h.audio_eps
        filler, end = self.token_norm(self.tokens(ids), eps).chunk(1, 1)
        x = self.norm(x, eps)
        if filled:
            x = x.concat(filler.contiguous().repeat(1, filled), 1)
        x = self.proj(x.concat(end, 1)).rms_norm(eps=eps)
        x, end = x.chunk_sections(1, h.audio_rows, 1)
        return x.contiguous(), end.contiguous()
