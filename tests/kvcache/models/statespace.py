"""A small state-space model, as Mamba's blocks are; a layer may have attention instead."""

from __future__ import annotations

from ggmodel import Config, Model, Module, Tensor, gguf, kv, nn, register
from ggmodel.kvcache import Causal, LayerCache, LayerStates, Part, Recurrent
from ggmodel.model import Batch
from ggmodel.nn import Embedding, Linear, RMSNorm


class SmallConfig(Config):
    layers: int = kv("block_count")
    hidden: int = kv("embedding_length")
    context: int = kv("context_length")
    eps: float = kv("attention.layer_norm_rms_epsilon")
    heads: int = kv("attention.head_count")
    kernel: int = kv("ssm.conv_kernel")
    inner: int = kv("ssm.inner_size")
    state: int = kv("ssm.state_size")
    rank: int = kv("ssm.time_step_rank")
    both = property(lambda h: 2 * h.inner)
    selected = property(lambda h: h.rank + 2 * h.state)
    qkv = property(lambda h: 3 * h.hidden)


class Mixer(Module):
    config: SmallConfig
    into: Linear = gguf("ssm_in", shape=("hidden", "both"))
    conv: Tensor = gguf("ssm_conv1d.weight", shape=("kernel", "inner"))
    conv_bias: Tensor = gguf("ssm_conv1d.bias", shape=("inner",))
    select: Linear = gguf("ssm_x", shape=("inner", "selected"))
    dt: Linear = gguf("ssm_dt", shape=("rank", "inner"))
    a: Tensor = gguf("ssm_a", shape=("state", "inner"))
    d: Tensor = gguf("ssm_d", shape=("inner",))
    out: Linear = gguf("ssm_out", shape=("inner", "hidden"))

    def memory(self) -> Recurrent:
        h = self.config
        return Recurrent(checkpoints=2, conv=(h.kernel - 1, h.inner), ssm=(h.state, 1, h.inner))

    def forward(self, x: Tensor, batch: Batch, cache: LayerStates) -> Tensor:
        x, z = self.into(x).chunk(0, self.config.inner)
        return self.out(cache.each(self.scan, x) * z.contiguous().silu())

    def scan(self, part: Part, x: Tensor) -> Tensor:
        h, shape = self.config, (part.n, part.sequences)
        window = part.get("conv").concat(x.permute(1, 0), 0)
        part.put("conv", window.slice(0, part.n, part.n + h.kernel - 1))
        x = (window.ssm_conv(self.conv) + self.conv_bias).silu()
        dt, B, C = self.select(x).chunk_sections(0, h.rank, h.state, h.state)
        dt = self.dt(dt.contiguous())
        B, C = (s.contiguous(h.state, 1, *shape) for s in (B, C))
        heads = x.reshape(1, h.inner, *shape)
        result = part.slots("ssm").ssm_scan(heads, dt, self.a, B, C, part.ids)
        part.put("ssm", result.slice(0, x.n_elements, result.dim(0)))
        return result.slice(0, 0, x.n_elements).reshape(h.inner, *shape) + x * self.d


class Attention(Module):
    config: SmallConfig
    qkv: Linear = gguf("attn_qkv", shape=("hidden", "qkv"))
    out: Linear = gguf("attn_output", shape=("hidden", "hidden"))

    def memory(self) -> Causal:
        return Causal(self.rope())

    def rope(self) -> nn.Rope:
        return nn.Rope(self.config.hidden // self.config.heads)

    def forward(self, x: Tensor, batch: Batch, cache: LayerCache) -> Tensor:
        h = self.config
        split = self.qkv(x).chunk(0, h.hidden)
        q, k, v = (s.contiguous(h.hidden // h.heads, h.heads, x.dim(1)) for s in split)
        q, k = (self.rope()(s, batch.positions) for s in (q, k))
        return self.out(nn.attention(q, k, v, cache, scale=(h.hidden // h.heads) ** -0.5))


class Layer(Module):
    norm: RMSNorm = gguf("attn_norm", shape=("hidden",))
    mix: Mixer | Attention = gguf()

    def forward(self, x: Tensor, batch: Batch, cache) -> Tensor:
        return x + self.mix(self.norm(x), batch, cache)


@register("statespace")
class StateSpace(Model):
    config: SmallConfig
    embed: Embedding = gguf("token_embd", shape=("hidden", None))
    layers: list[Layer] = gguf("blk", n="layers")
    norm: RMSNorm = gguf("output_norm", shape=("hidden",))
    head: Linear = gguf("output", "token_embd", shape=("hidden", None))

    def caches(self) -> list[Recurrent | Causal]:
        return [layer.mix.memory() for layer in self.layers]

    def forward(self, ctx, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs)
        for layer, cache in zip(self.layers, batch.cache, strict=True):
            x = layer(x, batch, cache)
        return self.head(self.norm(x.rows(batch.outputs)))
