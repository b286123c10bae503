"""Gemma 4's vision tower: patches with two positions, pooled by squares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ggmodel import Module, Tensor, gguf, nn
from ggmodel.errors import ConfigError
from ggmodel.ml import RopeType
from ggmodel.model import Operation, Reshape
from ggmodel.nn import Conv2D, Linear, RMSNorm

from .config import Gemma4Config

Places = list[Tensor]  # column and row of each patch, I32 [patches]


class Kernel(Operation):
    """[out, patch · patch · 3] in checkpoints, a kernel [out, 3, patch, patch] in files."""

    def shape(self, shape: tuple[int, ...], config: Gemma4Config) -> tuple[int, ...]:
        return shape[0], 3, config.patch, config.patch

    def to_gguf(self, x: np.ndarray, config: Gemma4Config) -> np.ndarray:
        if x.size != len(x) * 3 * config.patch**2:
            raise ConfigError(
                f"{list(x.shape)} numbers for patches of {config.patch} × {config.patch}"
            )
        return x.reshape(len(x), config.patch, config.patch, 3).transpose(0, 3, 1, 2)

    def to_hf(self, x: np.ndarray, config: Gemma4Config) -> np.ndarray:
        return x.transpose(0, 2, 3, 1).reshape(len(x), -1)


def _bound(name: str) -> Tensor | None:
    return gguf(name, op=Reshape((1,), ()), shape=(1,))


class ClippedLinear(Linear):
    """A linear map; input and result are clipped, where a checkpoint has bounds."""

    weight: Tensor = gguf("weight", hf="linear.weight")
    input_min: Tensor | None = _bound("input_min")
    input_max: Tensor | None = _bound("input_max")
    output_min: Tensor | None = _bound("output_min")
    output_max: Tensor | None = _bound("output_max")

    def __init__(self, config: Gemma4Config | None = None):
        super().__init__(config)
        self.of_input = self.of_output = (-math.inf, math.inf)

    def read_bounds(self) -> None:
        """Reads the bounds, which a graph has as numbers."""

        def read(bound: Tensor | None, default: float) -> float:
            return default if bound is None else float(bound.floats()[0])

        self.of_input = read(self.input_min, -math.inf), read(self.input_max, math.inf)
        self.of_output = read(self.output_min, -math.inf), read(self.output_max, math.inf)

    def forward(self, x: Tensor) -> Tensor:
        """x [in, n] → [out, n] F32."""
        x = x if self.input_min is self.input_max is None else x.clamp(*self.of_input)
        y = super().forward(x)
        return y if self.output_min is self.output_max is None else y.clamp(*self.of_output)


def read_bounds(part: Any) -> None:
    """Reads the bounds of all maps in a module, or in a list of modules."""
    if isinstance(part, ClippedLinear):
        part.read_bounds()
    elif isinstance(part, Module):
        read_bounds(list(vars(part).values()))
    elif isinstance(part, list):
        for one in part:
            read_bounds(one)


class VisionAttention(Module):
    config: Gemma4Config
    q: ClippedLinear = gguf("attn_q", hf="q_proj", shape=("vit_width", "vit_width"))
    k: ClippedLinear = gguf("attn_k", hf="k_proj", shape=("vit_width", "vit_width"))
    v: ClippedLinear = gguf("attn_v", hf="v_proj", shape=("vit_width", "vit_width"))
    out: ClippedLinear = gguf("attn_out", hf="o_proj", shape=("vit_width", "vit_width"))
    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("vit_head_dim",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("vit_head_dim",))

    def forward(self, x: Tensor, places: Places) -> Tensor:
        h = self.config
        q, k, v = (p(x).reshape(h.vit_head_dim, h.vit_heads, -1) for p in (self.q, self.k, self.v))
        q = self._rotated(self.q_norm(q, h.vit_eps), places)
        k = self._rotated(self.k_norm(k, h.vit_eps), places)
        y = q.scaled_dot_product_attention(k, v.rms_norm(eps=h.vit_eps), scale=1.0)
        return self.out(y.reshape(h.vit_width, -1))

    def _rotated(self, x: Tensor, places: Places) -> Tensor:
        """The first half of a head by the column, the other by the row."""
        h, half = self.config, self.config.vit_head_dim // 2
        halves = [part.contiguous() for part in x.chunk(0, half)]
        columns, rows = (
            part.rope(at, half, h.vit_rope_base, type=RopeType.NEOX)
            for part, at in zip(halves, places, strict=True)
        )
        return columns.concat(rows, 0)


class VisionFeedForward(Module):
    config: Gemma4Config
    gate: ClippedLinear = gguf("ffn_gate", hf="gate_proj", shape=("vit_width", "vit_ffn"))
    up: ClippedLinear = gguf("ffn_up", hf="up_proj", shape=("vit_width", "vit_ffn"))
    down: ClippedLinear = gguf("ffn_down", hf="down_proj", shape=("vit_ffn", "vit_width"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.activate(self.config.vit_activation, self.gate(x), self.up(x)))


def _norm(name: str, hf: str) -> RMSNorm:
    return gguf(name, hf=hf, shape=("vit_width",))


class VisionLayer(Module):
    config: Gemma4Config
    norm1: RMSNorm = _norm("ln1", "input_layernorm")
    attn: VisionAttention = gguf(hf="self_attn")
    attn_post_norm: RMSNorm = _norm("attn_post_norm", "post_attention_layernorm")
    norm2: RMSNorm = _norm("ln2", "pre_feedforward_layernorm")
    ffn: VisionFeedForward = gguf(hf="mlp")
    ffn_post_norm: RMSNorm = _norm("ffn_post_norm", "post_feedforward_layernorm")

    def forward(self, x: Tensor, places: Places) -> Tensor:
        eps = self.config.vit_eps
        x = x + self.attn_post_norm(self.attn(self.norm1(x, eps), places), eps)
        return x + self.ffn_post_norm(self.ffn(self.norm2(x, eps)), eps)


class Vision(Module):
    config: Gemma4Config
    patches: Conv2D = gguf(
        "patch_embd",
        hf="patch_embedder.input_proj",
        op=Kernel(),
        shape=("patch", "patch", 3, "vit_width"),
    )
    positions: Tensor = gguf(
        "position_embd.weight",
        hf="patch_embedder.position_embedding_table",
        shape=("vit_width", None, 2),
    )
    layers: list[VisionLayer] = gguf("blk", hf="encoder.layers", n="vit_layers")
    bias: Tensor | None = gguf("std_bias", hf="std_bias", shape=("vit_width",))
    scale: Tensor | None = gguf("std_scale", hf="std_scale", shape=("vit_width",))

    def forward(self, x: Tensor, places: Places) -> Tensor:
        """Pixels [width, height, 3] from 0 to 1 → F32 [vit_width, rows]."""
        h = self.config
        x = self.patches(x.scale(2) - x.fill(1), h.patch)
        width, height = x.dim(0), x.dim(1)
        x = x.reshape(width * height, h.vit_width).permute(1, 0).contiguous()
        for axis, at in enumerate(places):
            x = x + self.positions.slice(2, axis, axis + 1).rows(at)
        for layer in self.layers:
            x = layer(x, places)
        x = x.permute(1, 0).contiguous(width, height, h.vit_width).avg_pool_2d(h.pool, h.pool)
        x = x.reshape(-1, h.vit_width).permute(1, 0).contiguous().scale(h.vit_width**0.5)
        x = x if self.bias is None else x - self.bias
        return x if self.scale is None else x * self.scale


class Projector(Module):
    config: Gemma4Config
    proj: Linear = gguf("input_projection", hf="embedding_projection", shape=("vit_width", "width"))

    def forward(self, x: Tensor) -> Tensor:
        """[vit_width, rows] → [width, rows]."""
        return self.proj(x.rms_norm(eps=self.config.vit_eps))
