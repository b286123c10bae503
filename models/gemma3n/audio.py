"""Gemma 3n's encoder of sounds: two convolutions over a spectrum, then a Conformer that sees half a
second back (arXiv 2303.01037)."""

from __future__ import annotations

import math

from ggmodel import Context, Module, Tensor, gguf, nn
from ggmodel.nn import Conv2D, Embedding, Linear, RMSNorm

from .config import Gemma3nConfig

EPS = nn.CONFORMER_EPS
SQUARE = ("audio_width", "audio_width")


class SubsampleConv(Module):
    """A convolution that halves frames and mels, and a norm over all of both so far."""

    config: Gemma3nConfig
    conv: Conv2D = gguf("", hf="conv", shape=(3, 3, None, None))
    norm: Tensor = gguf("norm.weight", hf="norm.weight", shape=(None,))

    def forward(self, x: Tensor) -> Tensor:
        """x [mels, frames, in] → [mels / 2, frames / 2, out]; frames see the next two."""
        x = self.conv.weight.conv_2d(x.pad(0, 2), 2, 2, 1, 0)
        mels, frames, channels = x.dim(0), x.dim(1), x.dim(2)
        x = x.permute(1, 2, 0).contiguous(channels * mels, frames)
        count = x.sum_rows().reshape(frames).fill(channels * mels).cumsum().reshape(1, frames)
        x = x - self._so_far(x) / count
        variance = self._so_far(x.sqr()) / count
        x = x / (variance + variance.fill(self.config.audio_conv_eps)).sqrt()
        x = x.reshape(channels, mels, frames) * self.norm
        return x.permute(2, 0, 1).contiguous().relu()

    def _so_far(self, x: Tensor) -> Tensor:
        """The sum of a row and all before it: [a, n] → [1, n]."""
        return x.sum_rows().reshape(x.dim(1)).cumsum().reshape(1, x.dim(1))


class ConformerAttention(Module):
    config: Gemma3nConfig
    norm: RMSNorm = gguf("ln1", hf="pre_attn_norm", shape=("audio_width",))
    q: Linear = gguf("attn_q", hf="attn.q_proj", shape=SQUARE)
    k: Linear = gguf("attn_k", hf="attn.k_proj", shape=SQUARE)
    v: Linear = gguf("attn_v", hf="attn.v_proj", shape=SQUARE)
    scale: Tensor = gguf("per_dim_scale", hf="attn.per_dim_scale", shape=("audio_head_dim",))
    relative: Linear = gguf(
        "linear_pos", hf="attn.relative_position_embedding.pos_proj", shape=SQUARE
    )
    out: Linear = gguf("attn_out", hf="post", shape=SQUARE)
    post_norm: RMSNorm = gguf("ln2", hf="post_norm", shape=("audio_width",))

    def forward(self, x: Tensor, local: nn.LocalAttention) -> Tensor:
        """x [width, n] → [width, n]."""
        h, y = self.config, self.norm(x, EPS)
        d, heads = h.audio_head_dim, h.audio_heads
        q, k, v = (part(y).reshape(d, heads, -1) for part in (self.q, self.k, self.v))
        q = q * self.scale.softplus().scale(d**-0.5 / math.log(2))  # softplus(0) is ln 2
        relative = self.relative(local.distances).reshape(d, heads, -1)
        return x + self.post_norm(self.out(local.attend(q, k, v, relative)), EPS)


class ConformerBlock(Module):
    config: Gemma3nConfig
    first: nn.ConformerFeedForward = gguf(hf="ffw_layer_start")
    attn: ConformerAttention = gguf(hf="attention")
    conv: nn.ConformerConv = gguf(hf="lconv1d")
    last: nn.ConformerFeedForward = gguf(suffix="_1", hf="ffw_layer_end")
    norm: RMSNorm = gguf("layer_pre_norm", hf="norm", shape=("audio_width",))

    def forward(self, x: Tensor, local: nn.LocalAttention) -> Tensor:
        """x [width, n] → [width, n]."""
        return self.norm(self.last(self.conv(self.attn(self.first(x), local))), EPS)


class Audio(Module):
    config: Gemma3nConfig
    conv0: SubsampleConv = gguf("conv1d.0", hf="subsample_conv_projection.conv_0")
    conv1: SubsampleConv = gguf("conv1d.1", hf="subsample_conv_projection.conv_1")
    into: Linear = gguf(
        "pre_encode.out",
        hf="subsample_conv_projection.input_proj_linear",
        shape=(None, "audio_width"),
    )
    layers: list[ConformerBlock] = gguf("blk", hf="conformer", n="audio_layers")

    def forward(self, ctx: Context, x: Tensor) -> Tensor:
        """A spectrum [mels, frames] → [width, rows]."""
        h = self.config
        x = self.conv1(self.conv0(x.reshape(x.dim(0), x.dim(1), 1)))
        # Channels vary fastest.
        x = self.into(x.permute(1, 2, 0).contiguous(x.dim(0) * x.dim(2), x.dim(1)))
        past, ahead, width = h.audio_past, h.audio_ahead, h.audio_width
        local = nn.LocalAttention(ctx, x.dim(1), past, ahead, h.audio_cap, width)
        for layer in self.layers:
            x = layer(x, local)
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
        ids = ctx.constant([last if h.audio_filler is None else h.audio_filler, h.audio_end])
        eps = h.audio_eps
        filler, end = self.token_norm(self.tokens(ids), eps).chunk(1, 1)
        x = self.norm(x, eps)
        if filled:
            x = x.concat(filler.contiguous().repeat(1, filled), 1)
        x = self.proj(x.concat(end, 1)).rms_norm(eps=eps)
        x, end = x.chunk_sections(1, h.audio_rows, 1)
        return x.contiguous(), end.contiguous()
