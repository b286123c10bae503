"""Gemma 4's encoder of sounds: two convolutions over a spectrum, then a Conformer that sees half a
second back (arXiv 2303.01037)."""

from __future__ import annotations

import math

import numpy as np

from ggmodel import Context, Module, Tensor, gguf, nn
from ggmodel.model import Operation, Reshape
from ggmodel.nn import Conv2D, LayerNorm, Linear, RMSNorm

from .config import Gemma4Config
from .vision import ClippedLinear

EPS = nn.CONFORMER_EPS
KEY_SCALE = math.log2(1 + math.e)  # softplus(1) / softplus(0)


class Softplus(Operation):
    """ln(1 + eˣ), as files have it."""

    def to_gguf(self, x: np.ndarray, config: Gemma4Config) -> np.ndarray:
        return np.logaddexp(0, x)

    def to_hf(self, x: np.ndarray, config: Gemma4Config) -> np.ndarray:
        return x + np.log(-np.expm1(-x))


class SubsampleConv(Module):
    """A convolution that halves frames and mels."""

    config: Gemma4Config
    conv: Conv2D = gguf("", hf="conv", shape=(3, 3, None, None))
    norm: LayerNorm = gguf("norm", hf="norm", shape=(None,))

    def forward(self, x: Tensor) -> Tensor:
        """x [mels, frames, in] → [mels / 2, frames / 2, out]."""
        x = self.conv.weight.conv_2d(x, 2, 2, 1, 1).permute(1, 2, 0).contiguous()
        return self.norm(x, self.config.audio_eps).permute(2, 0, 1).contiguous().relu()


def _clipped(name: str, hf: str, *shape: str | None) -> ClippedLinear:
    return gguf(name, hf=hf, shape=shape or ("audio_width", "audio_width"))


def _norm(name: str, hf: str) -> RMSNorm:
    return gguf(name, hf=hf, shape=("audio_width",))


class ConformerAttention(Module):
    config: Gemma4Config
    q: ClippedLinear = _clipped("attn_q", "q_proj")
    k: ClippedLinear = _clipped("attn_k", "k_proj")
    v: ClippedLinear = _clipped("attn_v", "v_proj")
    out: ClippedLinear = _clipped("attn_out", "post")
    scale: Tensor = gguf(
        "per_dim_scale.weight", hf="per_dim_scale", op=Softplus(), shape=("audio_head_dim",)
    )
    relative: Linear = gguf(
        "attn_k_rel", hf="relative_k_proj", shape=("audio_width", "audio_width")
    )

    def forward(self, x: Tensor, local: nn.LocalAttention) -> Tensor:
        """x [width, n] → [width, n]."""
        h = self.config
        d, heads = h.audio_head_dim, h.audio_heads
        q, k, v = (part(x).reshape(d, heads, -1) for part in (self.q, self.k, self.v))
        q = q * self.scale.scale(d**-0.5 / math.log(2))
        relative = self.relative(local.distances).reshape(d, heads, -1)
        return self.out(local.attend(q, k.scale(KEY_SCALE), v, relative))


class ConformerFeedForward(nn.ConformerFeedForward):
    up: ClippedLinear = _clipped("ffn_up", "ffw_layer_1", "audio_width", "audio_ffn")
    down: ClippedLinear = _clipped("ffn_down", "ffw_layer_2", "audio_ffn", "audio_width")


class ConformerConv(nn.ConformerConv):
    into: ClippedLinear = _clipped("conv_pw1", "linear_start", "audio_width", None)
    taps: Tensor = gguf(
        "conv_dw.weight",
        hf="depthwise_conv1d.weight",
        op=Reshape((0, -1), (0, 1, -1)),
        shape=(None, "audio_width"),
    )
    out: ClippedLinear = _clipped("conv_pw2", "linear_end")


class ConformerBlock(Module):
    config: Gemma4Config
    first: ConformerFeedForward = gguf(hf="feed_forward1")
    norm: RMSNorm = _norm("attn_pre_norm", "norm_pre_attn")
    attn: ConformerAttention = gguf(hf="self_attn")
    post_norm: RMSNorm = _norm("attn_post_norm", "norm_post_attn")
    conv: ConformerConv = gguf(hf="lconv1d")
    last: ConformerFeedForward = gguf(suffix="_1", hf="feed_forward2")
    out_norm: RMSNorm = _norm("ln2", "norm_out")

    def forward(self, x: Tensor, local: nn.LocalAttention) -> Tensor:
        """x [width, n] → [width, n]."""
        x = self.first(x)
        x = x + self.post_norm(self.attn(self.norm(x, EPS), local), EPS)
        return self.out_norm(self.last(self.conv(x)), EPS)


class Audio(Module):
    config: Gemma4Config
    conv0: SubsampleConv = gguf("conv1d.0", hf="subsample_conv_projection.layer0")
    conv1: SubsampleConv = gguf("conv1d.1", hf="subsample_conv_projection.layer1")
    into: Linear = gguf(
        "input_projection",
        hf="subsample_conv_projection.input_proj_linear",
        shape=(None, "audio_width"),
    )
    layers: list[ConformerBlock] = gguf("blk", hf="layers", n="audio_layers")
    out: Linear = gguf("pre_encode.out", hf="output_proj", shape=("audio_width", None))

    def forward(self, ctx: Context, x: Tensor) -> Tensor:
        """A spectrum [mels, frames] → [any width, rows]."""
        h = self.config
        x = self.conv1(self.conv0(x.reshape(x.dim(0), x.dim(1), 1)))
        # Channels vary fastest.
        x = self.into(x.permute(1, 2, 0).contiguous(x.dim(0) * x.dim(2), x.dim(1)))
        local = nn.LocalAttention(ctx, x.dim(1), h.audio_past, 0, h.audio_cap, h.audio_width)
        for layer in self.layers:
            x = layer(x, local)
        return self.out(x)


class AudioProjector(Module):
    config: Gemma4Config
    proj: Linear = gguf("input_projection", hf="embedding_projection", shape=(None, "width"))

    def forward(self, x: Tensor) -> Tensor:
        """[any width, rows] → [width, rows]."""
        return self.proj(x.rms_norm(eps=self.config.audio_eps))
