"""RWKV-7, in the names of flash-linear-attention: states in place of attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ggmodel import Config, Module, Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import LayerStates, Part, Recurrent
from ggmodel.ml import Context
from ggmodel.model import Batch, Concat, Reshape
from ggmodel.nn import Embedding, LayerNorm, Linear

_EPS = 64e-5  # of norms of heads, whatever the file says of others
_FORGETS = -math.exp(-0.5)  # the most, as a logarithm


def _ffn(hf: Mapping[str, Any]) -> int:
    """As config.json says, or a multiple of the width, rounded up."""
    multiple = int(hf["hidden_size"] * (hf.get("hidden_ratio") or 4))
    return hf.get("intermediate_size") or -(-multiple // 32) * 32


def _eps(hf: Mapping[str, Any]) -> float:
    """Files have no key for that of norms of heads, which is head_dim times as large."""
    if not math.isclose(hf["norm_eps"] * hf["head_dim"], _EPS, rel_tol=1e-6):
        raise ConfigError(f"norm_eps is {hf['norm_eps']}; supported: {_EPS / hf['head_dim']}")
    return hf["norm_eps"]


class Rwkv7Config(Config):
    # The tensors tell the same, or nothing depends on it.
    fixed = {
        **dict.fromkeys(("attn_mode", "fuse_norm", "hidden_ratio", "num_heads", "use_l2warp"), ...),
        **dict.fromkeys(("fuse_cross_entropy", "fuse_linear_cross_entropy"), ...),
        "max_position_embeddings": ...,
        **{"attn": None, "hidden_act": "sqrelu", "norm_first": True, "norm_bias": True},
        "value_dim": lambda hf: [hf["hidden_size"]] * hf["num_hidden_layers"],
    }
    unread = ("attention_heads", "decay_rank", "rate_rank", "value_rank", "gate_rank")

    layers: int = kv("block_count", hf="num_hidden_layers")
    width: int = kv("embedding_length", hf="hidden_size", least=1)
    ffn: int = kv("feed_forward_length", hf=_ffn)
    head: int = kv("wkv.head_size", hf="head_dim", least=1, divides="width")
    eps: float = kv("attention.layer_norm_epsilon", hf=_eps)
    context: int = kv("context_length", hf=lambda hf: 2**20)  # there is no limit
    attention_heads: int = kv("attention.head_count", hf=lambda hf: 0, default=0)
    decay_rank: int = kv("attention.decay_lora_rank", hf="decay_low_rank_dim")
    rate_rank: int = kv("attention.iclr_lora_rank", hf="a_low_rank_dim")
    value_rank: int = kv("attention.value_residual_mix_lora_rank", hf="v_low_rank_dim")
    gate_rank: int = kv("attention.gate_lora_rank", hf="gate_low_rank_dim")
    heads = property(lambda h: h.width // h.head)


def _vector(name: str, op: Reshape | None = None) -> Tensor:
    return gguf(f"time_mix_{name}.weight", hf=name, op=op, shape=("width",))


def shifted(part: Part, x: Tensor, state: str) -> Tensor:
    """The row before each row of x [width, n, sequences]; `state` has the last one."""
    rows = part.get(state).reshape(x.dim(0), 1, -1).concat(x, 1)
    part.put(state, rows.slice(1, part.n, part.n + 1))
    return rows.slice(1, 0, part.n)


class LowRank(Module):
    down: Tensor = gguf("1.weight", hf="lora.0.weight", shape=("width", None))
    up: Tensor = gguf("2.weight", hf="lora.2.weight", shape=(None, "width"))
    bias: Tensor | None = gguf("0.weight", hf="lora.2.bias", shape=("width",))

    def forward(self, x: Tensor, between: Callable[[Tensor], Tensor] = lambda y: y) -> Tensor:
        y = self.up.mulmat(between(self.down.mulmat(x)))
        return y if self.bias is None else y + self.bias


class TimeMix(Module):
    """A state a head, of values by keys. The token and the one before say how much of it each is
    forgotten, removed, added and recalled (arXiv 2503.14456)."""

    lerp: Tensor = gguf(
        "time_mix_lerp_fused.weight",
        hf=("x_x", Concat(tuple(f"x_{x}" for x in "rwkvag"), (1,) * 6)),
        op=Reshape((6, 1, 1, -1), (6, 1, -1)),
        shape=("width", 1, 1, 6),
    )
    r: Linear = gguf("time_mix_receptance", hf="r_proj", shape=("width", "width"))
    k: Linear = gguf("time_mix_key", hf="k_proj", shape=("width", "width"))
    v: Linear = gguf("time_mix_value", hf="v_proj", shape=("width", "width"))
    decay: LowRank = gguf(prefix="time_mix_w", hf="w_lora")
    rate: LowRank = gguf(prefix="time_mix_a", hf="a_lora")
    # The first layer has no other values to mix; files have copies of its rate there.
    mix: LowRank = gguf(prefix="time_mix_v", hf=("v_lora", "a_lora"))
    gate: LowRank = gguf(prefix="time_mix_g", hf="g_lora")
    removed: Tensor = _vector("k_k")
    added: Tensor = _vector("k_a")
    bonus: Tensor = _vector("r_k", Reshape((-1,), ("heads", "head")))
    norm: LayerNorm = gguf("time_mix_ln", hf="g_norm", shape=("width",))
    out: Linear = gguf("time_mix_output", hf="o_proj", shape=("width", "width"))

    def forward(self, x: Tensor, part: Part, first: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [width, n, sequences], and the first layer's values, alike → the same, and the values
        of this layer."""
        h, shape = self.config, (self.config.head, self.config.heads, part.n, part.sequences)
        mixed = (shifted(part, x, "time") - x).repeat(3, 6) * self.lerp + x
        r, w, k, v, a, g = (each.reshape(h.width, -1) for each in mixed.chunk(3, 1))
        k, values, rate = self.k(k), self.v(v), self.rate(a).sigmoid()
        if first is not None:
            values += (first.reshape(*values.shape) - values) * self.mix(v).sigmoid()
        removed = (k * self.removed).reshape(*shape).l2_norm()
        decay = self.decay(w, Tensor.tanh).sigmoid().scale(_FORGETS).exp()
        each = (self.r(r), decay, k + (rate * k - k) * self.added, values, rate)
        r, decay, k, v, rate = (s.reshape(*shape) for s in each)
        rows = r.rwkv_wkv7(decay, k, v, removed.neg(), removed * rate, part.get("wkv"))
        n = part.n * part.sequences
        part.put("wkv", rows.slice(1, n, rows.dim(1)))
        y = rows.slice(1, 0, n).reshape(*shape).layer_norm(eps=_EPS).reshape(h.width, -1)
        bonus = v * (r * k * self.bonus.reshape(h.head, -1)).sum_rows()
        y = y * self.norm.weight + self.norm.bias + bonus.reshape(*y.shape)
        y = self.out(y * self.gate(g, Tensor.sigmoid))
        return y.reshape(*x.shape), values.reshape(*x.shape)


class ChannelMix(Module):
    lerp: Tensor = gguf("channel_mix_lerp_k.weight", hf="x_k", shape=("width",))
    key: Linear = gguf("channel_mix_key", hf="key", shape=("width", "ffn"))
    value: Linear = gguf("channel_mix_value", hf="value", shape=("ffn", "width"))

    def forward(self, x: Tensor, part: Part) -> Tensor:
        """x [width, n, sequences] → the same."""
        return self.value(self.key((shifted(part, x, "channel") - x) * self.lerp + x).relu().sqr())


class Layer(Module):
    attn_norm: LayerNorm = gguf("attn_norm", hf="attn_norm", shape=("width",))
    attn: TimeMix = gguf(hf="attn")
    ffn_norm: LayerNorm = gguf("attn_norm_2", hf="ffn_norm", shape=("width",))
    ffn: ChannelMix = gguf(hf="ffn")

    def forward(self, x: Tensor, values: list[Tensor], cache: LayerStates, outputs: Any) -> Tensor:
        """x [width, n] → [width, n], or the rows `outputs` of it. The first layer adds its values
        [width, n] to the list."""
        x = cache.each(self.step, x, *values)
        if not values:
            x, first = (half.contiguous() for half in x.chunk(0, self.config.width))
            values.append(first)
        return nn.keep_rows(outputs, x)[0]

    def step(self, part: Part, x: Tensor, first: Tensor | None = None) -> Tensor:
        y, values = self.attn(self.attn_norm(x), part, first)
        x += y
        x += self.ffn(self.ffn_norm(x), part)
        return x.concat(values, 0) if first is None else x


@register("rwkv7", hf="RWKV7ForCausalLM")
class Rwkv7(nn.PlainDecoder):
    config: Rwkv7Config
    embed: Embedding = gguf("token_embd", hf="model.embeddings", shape=("width", None))
    embed_norm: LayerNorm = gguf("token_embd_norm", hf="model.layers.0.pre_norm", shape=("width",))
    layers: list[Layer] = gguf("blk", hf="model.layers", n="layers")
    norm: LayerNorm = gguf("output_norm", hf="model.norm", shape=("width",))
    head: Linear = gguf("output", hf="lm_head", shape=("width", None))

    def caches(self) -> list[Recurrent]:
        h, row = self.config, (self.config.width,)
        return [Recurrent(time=row, wkv=(h.head, h.head, h.heads), channel=row)] * h.layers

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x, values = self.embed_norm(self.embed(batch.inputs)), list[Tensor]()
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, values, cache, outputs)
        return self.norm(x)
