"""Layers with states in place of keys and values: Mamba, Mamba-2, the gated delta net.

Each steps through its tokens with ggml's scan, a piece of a prompt or one token of each sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from ..errors import ConfigError
from ..kvcache import Causal, LayerStates, Part, Recurrent
from ..ml import RopeType, Tensor
from ..model.batch import Batch
from ..model.config import Config, keys_behind
from ..model.module import Module, gguf, kv
from ..model.operations import Chain, NegatedExp, Reshape
from .decoder import Attention, Decoder, DecoderConfig, PreNormLayer, keep_rows
from .layers import Linear, RMSNorm, activate, activation

TAPS = Reshape((0, -1), (0, 1, -1))
"""Kernels over time, [channels, 1, kernel] in checkpoints, [channels, kernel] in files."""
_COLUMN = Reshape((-1, 1), (-1,))


def _inner(hf: Mapping[str, Any]) -> int:
    """Channels: as they are said, those of all heads, or a multiple of the width. Models of
    several kinds of layers say the width of others by `intermediate_size`."""
    keys = (
        ("mamba_n_heads", "mamba_num_heads", "num_heads"),
        ("mamba_d_head", "mamba_head_dim", "head_dim"),
    )
    heads, size = (next((hf[key] for key in names if key in hf), None) for names in keys)
    expanded, said = hf.get("mamba_expand", hf.get("expand", 2)), hf.get("mamba_d_ssm")
    if said is None and heads is not None and isinstance(size, int):
        said = heads * size
    elif said is None and "mamba_expand" not in hf:
        said = hf.get("intermediate_size")
    return int(expanded * hf["hidden_size"]) if said is None else said


def _rank(hf: Mapping[str, Any]) -> int | None:
    rank = hf.get("mamba_dt_rank", hf.get("time_step_rank"))
    return -(-hf["hidden_size"] // 16) if rank in ("auto", None) else rank


def _no_limit(hf: Mapping[str, Any]) -> Any:
    """The supported limits of a step: none, however a config spells infinity."""
    limits, none = hf.get("time_step_limit"), [0.0, math.inf]
    return limits if limits == [0.0, {"__float__": "Infinity"}] else none


def short_conv(part: Part, x: Tensor, taps: Tensor, state: str = "conv") -> Tensor:
    """Causal convolution of each channel over time; `state` has the values that the next token
    sees, [kernel − 1, channels].

    Args:
        x: [channels, n, sequences].
        taps: [kernel, channels].

    Returns:
        F32 [channels, n, sequences].
    """
    window = part.get(state).concat(x.permute(1, 0), 0)  # [kernel − 1 + n, channels, sequences]
    part.put(state, window.slice(0, part.n, window.dim(0)))
    return window.ssm_conv(taps)


def selective_scan(
    part: Part, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: str = "ssm"
) -> Tensor:
    """Mamba's scan (arXiv 2312.00752, 2405.21060) from and to the state [state, d, heads]; see
    `Tensor.ssm_scan` for the other operands.

    Returns:
        F32 [d, heads, n, sequences], the shape of x.
    """
    y, n = part.slots(state).ssm_scan(x, dt, A, B, C, part.ids), x.n_elements
    part.put(state, y.slice(0, n, y.dim(0)))
    return y.slice(0, 0, n).reshape(*x.shape)


class Mamba2Config(Config):
    """Hyperparameters of Mamba-2 under the names that published models have for them."""

    fixed = {"time_step_limit": _no_limit}

    kernel: int = kv("ssm.conv_kernel", hf=("mamba_d_conv", "conv_kernel"), least=2)
    state: int = kv("ssm.state_size", hf=("mamba_d_state", "ssm_state_size", "state_size"), least=1)
    ssm_heads: int = kv(
        "ssm.time_step_rank", hf=("mamba_n_heads", "mamba_num_heads", "num_heads"), least=1
    )
    groups: int = kv(
        "ssm.group_count", hf=("mamba_n_groups", "n_groups"), least=1, divides="ssm_heads"
    )
    inner: int = kv("ssm.inner_size", hf=_inner, least=1)
    activation: str = activation("silu")
    ssm_head_dim = property(lambda h: h.inner // h.ssm_heads)
    channels = property(lambda h: h.inner + 2 * h.groups * h.state)
    projected = property(lambda h: h.inner + h.channels + h.ssm_heads)
    group_width = property(lambda h: h.inner // h.groups)

    @property
    def states(self) -> Recurrent:
        """The declaration of a layer's states, for `caches()`."""
        conv = (self.kernel - 1, self.channels)
        return Recurrent(conv=conv, ssm=(self.state, self.ssm_head_dim, self.ssm_heads))


class GroupNorm(RMSNorm):
    """norm(x · silu(gate)) of each group of channels. It reads the config's `inner`, `groups` and
    `eps`. As a field: shape=("group_width", "groups")."""

    dims = {"weight": (0, 1)}

    weight: Tensor = gguf("weight", op=Reshape(("groups", -1), (-1,)))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x, gate [inner, n] → [inner, n]."""
        h = self.config
        y = super().forward((gate.silu() * x).reshape(h.group_width, h.groups, -1))
        return y.reshape(h.inner, -1)


class Mamba2(Module):
    """A state a head, which forgets by one number a head and token (arXiv 2405.21060), behind a
    convolution, and before a gated norm. It reads `Mamba2Config`, `width` and `eps`.

    Attributes:
        norm: None multiplies by silu(gate) alone.
    """

    into: Linear = gguf("ssm_in", hf="in_proj", shape=("width", "projected"))
    taps: Tensor = gguf(
        "ssm_conv1d.weight", hf="conv1d.weight", op=TAPS, shape=("kernel", "channels")
    )
    bias: Tensor | None = gguf("ssm_conv1d.bias", hf="conv1d.bias", shape=("channels",))
    dt_bias: Tensor = gguf("ssm_dt.bias", hf="dt_bias", shape=("ssm_heads",))
    rates: Tensor = gguf(
        "ssm_a", hf="A_log", op=Chain(NegatedExp(), _COLUMN), shape=(1, "ssm_heads")
    )
    skip: Tensor = gguf("ssm_d", hf="D", op=_COLUMN, shape=(1, "ssm_heads"))
    norm: GroupNorm | None = gguf("ssm_norm", hf="norm", shape=("group_width", "groups"))
    out: Linear = gguf("ssm_out", hf="out_proj", shape=("inner", "width"))

    def forward(self, x: Tensor, batch: Batch, cache: LayerStates) -> Tensor:
        """x [width, n] → [width, n] F32."""
        h = self.config
        gate, x, dt = self.into(x).chunk_sections(0, h.inner, h.channels, h.ssm_heads)
        y, gate = cache.each(self.scan, x, dt), gate.contiguous()
        return self.out(gate.silu() * y if self.norm is None else self.norm(y, gate))

    def scan(self, part: Part, x: Tensor, dt: Tensor) -> Tensor:
        """x [channels, n, sequences], dt [heads, n, sequences] → [inner, n, sequences]."""
        h, shape, shared = (
            self.config,
            (part.n, part.sequences),
            self.config.groups * self.config.state,
        )
        x = short_conv(part, x, self.taps)
        x = activate(h.activation, x if self.bias is None else x + self.bias)
        x, B, C = x.chunk_sections(0, h.inner, shared, shared)
        x = x.contiguous(h.ssm_head_dim, h.ssm_heads, *shape)
        B, C = (s.contiguous(h.state, h.groups, *shape) for s in (B, C))
        y = selective_scan(part, x, dt + self.dt_bias, self.rates, B, C)
        return (y + x * self.skip).reshape(h.inner, *shape)


class MambaConfig(Config):
    """Hyperparameters of Mamba."""

    kernel: int = kv("ssm.conv_kernel", hf=("mamba_d_conv", "conv_kernel"), least=2)
    state: int = kv("ssm.state_size", hf=("mamba_d_state", "state_size"), least=1)
    rank: int = kv("ssm.time_step_rank", hf=_rank, least=1)
    inner: int = kv("ssm.inner_size", hf=_inner, least=1)
    activation: str = activation("silu")
    projected = property(lambda h: 2 * h.inner)
    selected = property(lambda h: h.rank + 2 * h.state)

    @property
    def states(self) -> Recurrent:
        """The declaration of a layer's states, for `caches()`."""
        return Recurrent(conv=(self.kernel - 1, self.inner), ssm=(self.state, 1, self.inner))


class Mamba(Module):
    """A state a channel, each of whose numbers forgets at its own rate (arXiv 2312.00752), behind a
    convolution, and before a gate. It reads `MambaConfig` and `width`.

    Attributes:
        dt_norm, b_norm, c_norm: norms of what a token selects; None in Mamba itself. A subclass
            that has them declares the fields, or gives functions.
    """

    dt_norm: Any = None
    b_norm: Any = None
    c_norm: Any = None
    into: Linear = gguf("ssm_in", hf="in_proj", shape=("width", "projected"))
    taps: Tensor = gguf("ssm_conv1d.weight", hf="conv1d.weight", op=TAPS, shape=("kernel", "inner"))
    bias: Tensor | None = gguf("ssm_conv1d.bias", hf="conv1d.bias", shape=("inner",))
    select: Linear = gguf("ssm_x", hf="x_proj", shape=("inner", "selected"))
    dt: Linear = gguf("ssm_dt", hf="dt_proj", shape=("rank", "inner"))
    rates: Tensor = gguf("ssm_a", hf="A_log", op=NegatedExp(), shape=("state", "inner"))
    skip: Tensor = gguf("ssm_d", hf="D", shape=("inner",))
    out: Linear = gguf("ssm_out", hf="out_proj", shape=("inner", "width"))

    def forward(self, x: Tensor, batch: Batch, cache: LayerStates) -> Tensor:
        """x [width, n] → [width, n] F32."""
        x, gate = self.into(x).chunk(0, self.config.inner)
        return self.out(gate.contiguous().silu() * cache.each(self.scan, x))

    def scan(self, part: Part, x: Tensor) -> Tensor:
        """x [inner, n, sequences] → the same."""
        h, shape = self.config, (part.n, part.sequences)
        x = short_conv(part, x, self.taps)
        x = activate(h.activation, x if self.bias is None else x + self.bias)
        selected = self.select(x).chunk_sections(0, h.rank, h.state, h.state)
        norms = self.dt_norm, self.b_norm, self.c_norm
        dt, B, C = (
            s.contiguous() if norm is None else norm(s.contiguous())
            for norm, s in zip(norms, selected, strict=True)
        )
        B, C = (s.reshape(h.state, 1, *shape) for s in (B, C))
        y = selective_scan(part, x.reshape(1, h.inner, *shape), self.dt(dt), self.rates, B, C)
        return y.reshape(h.inner, *shape) + x * self.skip


class MixerLayer(Module):
    """x + mixer(norm(x)). A subclass annotates `mixer`."""

    norm: RMSNorm = gguf("attn_norm", hf="norm", shape=("width",))
    mixer: Module = gguf(hf="mixer")

    def forward(self, x: Tensor, batch: Batch, cache: Any, outputs: Tensor | None) -> Tensor:
        """x [width, n] → [width, n], or the rows `outputs` of it."""
        x, y = keep_rows(outputs, x, self.mixer(self.norm(x), batch, cache))
        return x + y


_STATES = ("linear_attention", "mamba", "mamba2", "conv")
_ATTENTION = ("full_attention", "attention")


def recurrent_layers(hf: Mapping[str, Any]) -> list[bool] | None:
    """Layer → whether it has states in place of attention, by the `layer_types` of a config, or its
    `layers_block_type`; None for a config without.

    Raises:
        ConfigError: another kind of layer.
    """
    kinds = hf.get("layer_types") or hf.get("layers_block_type")
    if unknown := {*(kinds or ())} - {*_STATES, *_ATTENTION}:
        known = ", ".join((*_ATTENTION, *_STATES))
        raise ConfigError(f"layer_types has {min(unknown)!r:.40}; supported: {known}")
    return kinds and [kind in _STATES for kind in kinds]


def _kv_heads(hf: Mapping[str, Any]) -> list[int]:
    heads = hf.get("num_key_value_heads") or hf["num_attention_heads"]
    recurrent = recurrent_layers(hf) or [False] * hf["num_hidden_layers"]
    return [0 if states else heads for states in recurrent]


class HybridConfig(DecoderConfig):
    """A decoder's hyperparameters where heads of keys and values are listed by layer: a layer with
    none has states."""

    each_kv_heads: list = kv("attention.head_count_kv", hf=_kv_heads)
    kv_heads: Any = property(lambda h: max(h.each_kv_heads))
    recurrent: Any = property(lambda h: [heads == 0 for heads in h.each_kv_heads])


class HybridDecoder(Decoder):
    """Layers of attention between others with states. The config has `recurrent`, layer → whether
    it has states, and `states`, what they are; a layer's field `attn` is either.

    Attributes:
        rope_type: of the layers of attention.
    """

    rope_type: ClassVar[RopeType] = RopeType.NEOX

    def validate(self) -> None:
        h, layers = self.config, cast(list[PreNormLayer], self.layers)
        tensors = [not isinstance(layer.attn, Attention) for layer in layers]
        if h.recurrent != tensors:
            declared, stored = ([i for i, x in enumerate(of) if x] for of in (h.recurrent, tensors))
            raise ConfigError(
                f"layers {declared} of {len(h.recurrent)} have states by "
                f"{' and '.join(keys_behind(h, 'recurrent'))}, {stored} of {len(tensors)} by the "
                "tensors"
            )

    def attention_memory(self) -> Causal:
        """The declaration of a layer of attention."""
        return Causal(self.rotary.rope(self.rope_type))

    def caches(self) -> list[Causal | Recurrent]:
        causal, states = self.attention_memory(), self.config.states
        return [states if recurrent else causal for recurrent in self.config.recurrent]
