"""DeepSeek V4: several residual streams (hyper-connections), attention that reads a window and
compressed entries of all before it, experts by token in the first layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ggmodel import Module, Tensor, gguf, kv, nn, register
from ggmodel.errors import ConfigError
from ggmodel.kvcache import Compressed, Sliding
from ggmodel.ml import Context, DType
from ggmodel.model import Batch, Indices, LayerMemory
from ggmodel.nn import ExpertLinear, Linear, RMSNorm

LOCAL = "sliding_attention"
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATES = {LOCAL: 0, SPARSE: 4, HEAVY: 128}
HASHED = "hash_moe"
SQRT_SOFTPLUS = 4  # `expert_gating_func` in files
_HEADS_AT_ONCE = 8  # scores of all heads at once would take gigabytes


def _supported(key: str, values: list[Any], supported: Iterable[Any]) -> list[Any]:
    """The values of a key that lists one for each layer; raises ConfigError for others."""
    if unknown := [value for value in values if value not in supported]:
        names = ", ".join(map(str, supported))
        raise ConfigError(f"{key} has {unknown[0]!r:.40}; supported: {names}")
    return values


def _rates(hf: Mapping[str, Any]) -> list[int]:
    """Layer → positions of a compressed entry; 0 without compression."""
    layers, kinds = hf["num_hidden_layers"], hf.get("layer_types")
    if kinds is None and (ratios := hf.get("compress_ratios")) is not None:
        named = {rate: kind for kind, rate in RATES.items()}
        kinds = [named[rate] for rate in _supported("compress_ratios", ratios[:layers], named)]
    elif kinds is None:
        kinds = [SPARSE if i % 2 and i > 1 else HEAVY for i in range(layers)]
    rates = {**RATES, **(hf.get("compress_rates") or {}), LOCAL: 0}
    return [rates[kind] for kind in _supported("layer_types", kinds[:layers], RATES)]


def _hashed(hf: Mapping[str, Any]) -> int:
    """The number of layers whose experts follow from the token."""
    layers, kinds = hf["num_hidden_layers"], hf.get("mlp_layer_types")
    if kinds is None:
        return min(hf.get("num_hash_layers", 3), layers)
    return _supported("mlp_layer_types", kinds[:layers], (HASHED, "moe")).count(HASHED)


def _main_part(hf: Mapping[str, Any]) -> float | None:
    """The rotated part of a head, in layers of all kinds."""
    main = (hf.get("rope_parameters") or {}).get("main")
    return hf.get("partial_rotary_factor") if main is None else main.get("partial_rotary_factor", 1)


def _rope_dims(hf: Mapping[str, Any]) -> int:
    part, dims = _main_part(hf), hf.get("qk_rope_head_dim")
    return dims or 64 * hf["head_dim"] // 512 if part is None else int(hf["head_dim"] * part)


def _scaling(hf: Mapping[str, Any]) -> str | None:
    scaling = hf.get("rope_scaling") or (hf.get("rope_parameters") or {}).get("compress") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "linear", "yarn"):
        raise ConfigError(f"rope_scaling is of the type {kind!r:.40}; supported: linear, yarn")
    return None if kind == "default" else kind


def _factor(hf: Mapping[str, Any]) -> float | None:
    """YaRN's on queries and keys. A table of ropes has the usual one; others have 1 unless they say
    it, whatever their two scales are."""
    if _scaling(hf) != "yarn":
        return None
    if "compress" not in (hf.get("rope_parameters") or {}):
        return hf["rope_scaling"].get("attention_factor")
    factor = nn.yarn_magnitude(hf)
    return nn.paper_magnitude(nn.scaling_factor(hf) or 1.0) if factor is None else factor


class Deepseek4Config(nn.ExpertsConfig):
    # Other programs need them.
    unread = tuple("gating hashed kv_heads normalize shared_experts value_dim".split())
    fixed = {
        **dict.fromkeys(("attention_bias", "mlp_bias", "num_key_value_heads"), ...),
        **dict.fromkeys(("compress_rates", "compress_ratios", "layer_types"), ...),  # read
        **dict.fromkeys(("partial_rotary_factor", "qk_rope_head_dim"), ...),
        "scoring_func": "sqrtsoftplus",
        "rope_parameters.main.rope_type": "default",
        "rope_parameters.compress.partial_rotary_factor": _main_part,
    }

    ffn: Any = property(lambda h: h.expert_ffn)
    dense_layers: Any = property(lambda h: 0)
    kv_heads: int = kv("attention.head_count_kv", hf=lambda hf: 1)
    head_dim: int = kv("attention.key_length", hf="head_dim")
    q_rank: int = kv("attention.q_lora_rank", hf="q_lora_rank")
    window: int = kv("attention.sliding_window", hf="sliding_window")
    out_groups: int = kv("attention.output_group_count", hf="o_groups", least=1, divides="heads")
    out_rank: int = kv("attention.output_lora_rank", hf="o_lora_rank")
    # Layer → positions of a compressed entry; 0 is none. Sparse layers have an indexer.
    rates: list = kv("attention.compress_ratios", hf=_rates, least=0)
    index_heads: int = kv("attention.indexer.head_count", hf="index_n_heads", least=1)
    index_dim: int = kv("attention.indexer.key_length", hf="index_head_dim", least=1)
    index_used: int = kv("attention.indexer.top_k", hf="index_topk", least=1)
    main_base: float = kv(
        "rope.freq_base", hf=("rope_parameters.main.rope_theta", "rope_theta"), default=1e4
    )
    rope_base: float = kv(
        "attention.compress_rope_freq_base",
        hf=("rope_parameters.compress.rope_theta", "compress_rope_theta"),
        default=1.6e5,
    )
    rope_dims: int = kv("rope.dimension_count", hf=_rope_dims)
    scaling: str = kv("rope.scaling.type", hf=_scaling, default="")
    yarn_magnitude: float = kv("rope.scaling.yarn_attn_factor", hf=_factor, default=1.0)
    streams: int = kv("hyper_connection.count", hf="hc_mult", least=1)
    sinkhorn: int = kv("hyper_connection.sinkhorn_iterations", hf="hc_sinkhorn_iters", least=1)
    hyper_eps: float = kv("hyper_connection.epsilon", hf="hc_eps")
    limits: list = kv(
        "swiglu_clamp_exp", hf=lambda hf: [hf["swiglu_limit"]] * hf["num_hidden_layers"]
    )
    hashed: int = kv("hash_layer_count", hf=_hashed, default=0)
    gating: int = kv("expert_gating_func", hf=lambda hf: SQRT_SOFTPLUS)
    normalize: bool = kv("expert_weights_norm", hf=lambda hf: True)
    shared_experts: int = kv("expert_shared_count", hf=lambda hf: 1)
    limit = property(lambda h: float(h.limits[0]))
    wide = property(lambda h: h.streams * h.width)
    mixes = property(lambda h: (2 + h.streams) * h.streams)
    q_width = property(lambda h: h.heads * h.head_dim)
    group = property(lambda h: h.q_width // h.out_groups)
    out_ranks = property(lambda h: h.out_groups * h.out_rank)
    index_width = property(lambda h: h.index_heads * h.index_dim)


def _normalized(x: Tensor, eps: float) -> Tensor:
    """Rows of x divided by their sums and epsilon."""
    total = x.sum_rows()
    return x.div(total + total.fill(eps))


class HyperHead(Module):
    """Streams into one, by weights that follow from all of them."""

    config: Deepseek4Config
    fn: Tensor = gguf(
        "output_hc_fn.weight", hf=("model.hc_head.hc_fn", "hc_head_fn"), shape=("wide", "streams")
    )
    base: Tensor = gguf(
        "output_hc_base.weight", hf=("model.hc_head.hc_base", "hc_head_base"), shape=("streams",)
    )
    scale: Tensor = gguf(
        "output_hc_scale.weight", hf=("model.hc_head.hc_scale", "hc_head_scale"), shape=(1,)
    )

    def shares(self, x: Tensor) -> Tensor:
        """x [wide, n] → numbers [rows of `fn`, n]."""
        return self.fn.mulmat(x.rms_norm(eps=self.config.eps))

    def collapsed(self, x: Tensor, shares: Tensor) -> Tensor:
        """Streams x [wide, n] and numbers [streams, n] → [width, n]."""
        h, weights = self.config, shares.sigmoid()
        weights = (weights + weights.fill(h.hyper_eps)).reshape(h.streams, 1, -1)
        each = x.reshape(h.width, h.streams, -1).permute(1, 0, 2).contiguous()
        return each.mulmat(weights).reshape(h.width, -1)

    def forward(self, x: Tensor) -> Tensor:
        """x [wide, n] → [width, n]."""
        return self.collapsed(x, self.shares(x) * self.scale + self.base)


def _hyper(name: str, *shape: Any) -> Any:
    return gguf(f"hc_{name}.weight", hf=f"hc_{name}", shape=shape)


class HyperAttention(HyperHead):
    """Streams into one and back: manifold-constrained hyper-connections (arXiv 2512.24880)."""

    fn: Tensor = _hyper("attn_fn", "wide", "mixes")
    base: Tensor = _hyper("attn_base", "mixes")
    scale: Tensor = _hyper("attn_scale", 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [wide, n] → what enters a part of the layer [width, n], the share [streams, n] that
        each stream has in what leaves it, and those of the streams in each [streams², n]."""
        h, sizes = self.config, (self.config.streams, self.config.streams, self.config.streams**2)
        parts = zip(
            self.shares(x).chunk_sections(0, *sizes),
            self.scale.chunk(0, 1),
            self.base.chunk_sections(0, *sizes),
            strict=True,
        )
        into, out, mix = (part * scale + base for part, scale, base in parts)
        mix = mix.reshape(h.streams, h.streams, -1).softmax()
        mix = mix + mix.fill(h.hyper_eps)
        for _ in range(2 * h.sinkhorn - 1):  # columns and rows in turn
            mix = _normalized(mix.permute(1, 0, 2).contiguous(), h.hyper_eps)
        return self.collapsed(x, into), out.sigmoid() * 2.0, mix.reshape(h.streams**2, -1)

    def spread(self, x: Tensor, y: Tensor, out: Tensor, mix: Tensor) -> Tensor:
        """Streams x [wide, n], and what a part of the layer adds, y [width, n] → [wide, n]."""
        h = self.config
        each = x.reshape(h.width, h.streams, -1).permute(1, 0, 2).contiguous()
        mixed = each.mulmat(mix.reshape(h.streams, h.streams, -1))
        added = y.reshape(1, h.width, -1).mulmat(out.reshape(1, h.streams, -1))
        return (mixed + added).reshape(h.wide, -1)


class HyperFFN(HyperAttention):
    fn: Tensor = _hyper("ffn_fn", "wide", "mixes")
    base: Tensor = _hyper("ffn_base", "mixes")
    scale: Tensor = _hyper("ffn_scale", 3)


class Compressor(Module):
    """Entries as sums of rows, weighted by a softmax over the positions of each."""

    kv: Linear = gguf("compressor_kv", hf="wkv", shape=("width", None))
    gate: Linear = gguf("compressor_gate", hf="wgate", shape=("width", None))
    by_place: Tensor = gguf("compressor_ape.weight", hf="ape", shape=(None, None))
    norm: RMSNorm = gguf("compressor_norm", hf="norm", shape=(None,))

    rows_of = property(lambda self: self.by_place.dim(0))
    width = property(lambda self: self.norm.weight.dim(0))

    def rows(self, x: Tensor) -> Tensor:
        """x [width, n] → rows [2 · rows_of, n]."""
        return self.kv(x).concat(self.gate(x), 0)

    def forward(self, rows: Tensor, entries: Any, rope: nn.Rope) -> Tensor:
        """Rows of each entry's positions → entries [width of the norm, entries]."""
        values, gates = rows.chunk(0, self.rows_of)
        gates = gates + self.by_place
        values, gates = (self._own(part).permute(1, 0, 2).contiguous() for part in (values, gates))
        weights = (gates + entries.absent).softmax()
        y = self.norm((values * weights).sum_rows().reshape(self.width, 1, -1))
        return rope(y, entries.positions).reshape(self.width, -1)

    def _own(self, rows: Tensor) -> Tensor:
        """Rows that overlap have two halves, for the entry after their own and for their own."""
        half, rate = self.width, self.by_place.dim(1)
        if rows.dim(0) == half:
            return rows
        before = rows.slice(0, 0, half).slice(1, 0, rate)
        return before.concat(rows.slice(0, half, 2 * half).slice(1, rate, 2 * rate), 1)


class Indexer(Module):
    """The entries that each token reads."""

    q: Linear = gguf("indexer.attn_q_b", hf="wq_b", shape=("q_rank", "index_width"))
    shares: Linear = gguf("indexer.proj", hf="weights_proj", shape=("width", "index_heads"))
    compressor: Compressor = gguf(prefix="indexer_", hf="compressor")

    def forward(self, x: Tensor, q: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """x [width, n], queries [dim, heads, n], keys of entries [dim, m], a mask [m, n], 0 or −inf
        → the same for those that are read."""
        h, m, n = self.config, keys.dim(1), x.dim(1)
        shares, scores = self.shares(x).scale(h.index_width**-0.5), mask
        parts = q.chunk(1, _HEADS_AT_ONCE), shares.chunk(0, _HEADS_AT_ONCE)
        for some, part in zip(*parts, strict=True):
            each = keys.mulmat(some.contiguous().reshape(h.index_dim, -1)).relu()
            each = each.reshape(m, -1, n).permute(1, 0, 2).contiguous()
            scores = scores + each.mulmat(part.contiguous().reshape(-1, 1, n)).reshape(m, n)
        ids = scores.top_k(h.index_used)
        read = scores.slice(0, 0, h.index_used).fill(0.0).reshape(1, -1, n)
        return scores.fill(-math.inf).reshape(1, m, n).set_rows(read, ids).reshape(m, n)


class Attention(Module):
    config: Deepseek4Config
    q_a: Linear = gguf("attn_q_a", hf="wq_a", shape=("width", "q_rank"))
    q_norm: RMSNorm = gguf("attn_q_a_norm", hf="q_norm", shape=("q_rank",))
    q_b: Linear = gguf("attn_q_b", hf="wq_b", shape=("q_rank", "q_width"))
    k: Linear = gguf("attn_kv", hf="wkv", shape=("width", "head_dim"))
    k_norm: RMSNorm = gguf("attn_kv_a_norm", hf=("kv_norm", "norm"), shape=("head_dim",))
    sinks: Tensor = gguf("attn_sinks.weight", hf="attn_sink", shape=("heads",))
    out_a: Tensor = gguf("attn_output_a.weight", hf="wo_a.weight", shape=("group", "out_ranks"))
    out_b: Linear = gguf("attn_output_b", hf="wo_b", shape=("out_ranks", "width"))
    compressor: Compressor | None = gguf(prefix="attn_", hf="compressor")
    indexer: Indexer | None = gguf(hf="indexer")

    @property
    def compressors(self) -> list[Compressor]:
        """The compressor of entries, then that of the indexer's keys."""
        both = self.compressor, self.indexer and self.indexer.compressor
        return [one for one in both if one is not None]

    def check(self, rate: int) -> None:
        """Raises ConfigError unless the compressors make entries of `rate` positions; those of an
        indexer's layer overlap."""
        h = self.config
        if self.compressor is None and self.indexer is not None:
            raise ConfigError("a layer has an indexer without compressed entries")
        for part, width in zip(self.compressors, (h.head_dim, h.index_dim), strict=False):
            rows = width * (2 if self.indexer else 1)
            maps = part.kv.weight.dim(1), part.gate.weight.dim(1)
            sizes = part.width, *maps, part.rows_of, part.by_place.dim(1)
            if sizes != (width, rows, rows, rows, rate):
                raise ConfigError(
                    f"a compressor's norm, kv, gate and two dims of ape have {sizes}; supported in "
                    f"its layer: {(width, rows, rows, rows, rate)}"
                )

    def memory(self, rate: int) -> Compressed:
        """The declaration of the entries' memory, of one for `rate` positions."""
        h, each = self.config, self.compressors
        rows, entry = (sum(x) for x in zip(*((2 * c.rows_of, c.width) for c in each), strict=True))
        used = h.index_used if self.indexer else 0
        return Compressed(rate, rows, entry, each[0].rows_of > h.head_dim, used)

    def forward(self, x: Tensor, batch: Batch, cache: Any) -> Tensor:
        """x [width, n] → [width, n]."""
        h, at = self.config, batch.positions
        local, entries = cache if self.compressor else (cache, None)
        latent = self.q_norm(self.q_a(x))
        q = self.q_b(latent).reshape(h.head_dim, h.heads, -1).rms_norm(eps=h.eps)
        k = self.k_norm(self.k(x)).reshape(h.head_dim, 1, -1)
        q, k = local.rotate(q, at), local.rotate(k, at)
        if entries is None:
            y = nn.attention(q, k, k, local, scale=h.scale, sinks=self.sinks)
        else:
            local.put(k, k)
            self.compress(x, local.rope, entries)
            keys = entries.get().slice(0, 0, h.head_dim).concat(local.get()[0], 2)
            more = {"scale": h.scale, "bias": self.choose(x, latent, at, local, entries)}
            mask = entries.mask(local)
            y = q.scaled_dot_product_attention(keys, keys, mask, self.sinks, **more)
        y = local.rope.back(y.reshape(h.head_dim, h.heads, -1), at)
        y = y.reshape(h.group, h.out_groups, -1).permute(0, 2, 1)
        y = self.out_a.reshape(h.group, h.out_rank, h.out_groups).mulmat(y)
        return self.out_b(y.permute(0, 2, 1).contiguous().reshape(h.out_ranks, -1))

    def compress(self, x: Tensor, rope: nn.Rope, entries: Any) -> None:
        """Stores the rows of x [width, n], and the entries that they complete."""
        each = [part.rows(x) for part in self.compressors]
        collected = entries.collect(each[0].stack(0, *each[1:]))
        if collected is not None:
            pieces = collected.chunk_sections(0, *(rows.dim(0) for rows in each))
            parts = zip(self.compressors, pieces, strict=True)
            complete = [part(piece, entries, rope) for part, piece in parts]
            entries.put(complete[0].stack(0, *complete[1:]))

    def choose(
        self, x: Tensor, latent: Tensor, at: Tensor, local: LayerMemory, entries: Any
    ) -> Tensor | None:
        """0 or −inf for the keys of entries and of the window, [m, n]; None where all are read."""
        h, mask = self.config, entries.scores
        if self.indexer is None or mask is None:
            return None
        q = local.rotate(self.indexer.q(latent).reshape(h.index_dim, h.index_heads, -1), at)
        keys = entries.get().slice(0, h.head_dim, h.head_dim + h.index_dim).contiguous()
        chosen = self.indexer(x, q, keys.reshape(h.index_dim, -1).cast(DType.F32), mask)
        return chosen.pad(local.get()[0].dim(2), 0, 0, 0)


class Shared(Module):
    """The expert that all tokens share."""

    gate: Linear = gguf("ffn_gate_shexp", hf="w1", shape=("width", "expert_ffn"))
    up: Linear = gguf("ffn_up_shexp", hf="w3", shape=("width", "expert_ffn"))
    down: Linear = gguf("ffn_down_shexp", hf="w2", shape=("expert_ffn", "width"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(limited(self.gate(x), self.up(x), self.config))


def limited(gate: Tensor, up: Tensor, h: Deepseek4Config) -> Tensor:
    """activation(gate) · up, both of one shape, with limits."""
    return nn.activate(h.activation, gate.clamp(-math.inf, h.limit), up.clamp(-h.limit, h.limit))


class Experts(Module):
    config: Deepseek4Config
    router: Tensor = gguf("ffn_gate_inp.weight", hf="gate.weight", shape=("width", "experts"))
    bias: Tensor | None = nn.selection_bias("gate.bias")
    table: Tensor | None = gguf(
        "ffn_gate_tid2eid.weight", hf="gate.tid2eid", op=Indices(), shape=("experts_used", None)
    )
    gate: ExpertLinear = nn.stacked("gate", "w1")
    up: ExpertLinear = nn.stacked("up", "w3")
    down: ExpertLinear = nn.stacked("down", "w2")
    shared: Shared = gguf(hf="shared_experts")

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """x [width, n] and its tokens I32 [n] → [width, n]."""
        h = self.config
        scores = self.router.mulmat(x).softplus().sqrt()
        if self.table is None:
            choice = scores if self.bias is None else scores + self.bias
            ids = choice.top_k(h.experts_used)
        else:
            ids = self.table.rows(tokens)
        weights = scores.reshape(1, h.experts, -1).rows(ids).reshape(h.experts_used, -1)
        weights = _normalized(weights, 1e-20).scale(h.expert_scale).reshape(1, h.experts_used, -1)
        each = x.reshape(h.width, 1, -1)
        y = self.down(limited(self.gate(each, ids), self.up(each, ids), h), ids)
        return nn.sum_experts(y * weights) + self.shared(x)


class Layer(Module):
    hyper_attn: HyperAttention = gguf()
    attn_norm: RMSNorm = gguf("attn_norm", hf="attn_norm", shape=("width",))
    attn: Attention = gguf(hf="attn")
    hyper_ffn: HyperFFN = gguf()
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="ffn_norm", shape=("width",))
    ffn: Experts = gguf(hf="ffn")

    def forward(self, x: Tensor, batch: Batch, cache: Any, outputs: Tensor | None) -> Tensor:
        """Streams x [wide, n] → [wide, n], or the rows `outputs` of it."""
        y, out, mix = self.hyper_attn(x)
        y = self.attn(self.attn_norm(y), batch, cache)
        tokens = batch.inputs.reshape(1, -1)
        x, y, out, mix, tokens = nn.keep_rows(outputs, x, y, out, mix, tokens)
        x = self.hyper_attn.spread(x, y, out, mix)
        y, out, mix = self.hyper_ffn(x)
        y = self.ffn(self.ffn_norm(y), tokens.reshape(-1))
        return self.hyper_ffn.spread(x, y, out, mix)


@register("deepseek4", hf="DeepseekV4ForCausalLM")
class Deepseek4(nn.Decoder):
    config: Deepseek4Config
    embed: nn.Embedding = gguf(
        "token_embd", hf=("model.embed_tokens", "embed"), shape=("width", None)
    )
    layers: list[Layer]
    collapse: HyperHead = gguf()
    head: Linear = gguf("output", "token_embd", hf=("head", "lm_head"), shape=("width", None))
    ignore_hf = ("mtp.*",)

    def validate(self) -> None:
        h = self.config
        compressed = [layer.attn.compressor is not None for layer in self.layers]
        if [rate > 0 for rate in h.rates[: h.layers]] != compressed:
            raise ConfigError(
                f"attention.compress_ratios is {h.rates}; the layers with compressors: {compressed}"
            )
        for layer, rate in zip(self.layers, h.rates, strict=False):
            layer.attn.check(rate)
        if (tables := sum(layer.ffn.table is not None for layer in self.layers)) != h.hashed:
            raise ConfigError(f"hash_layer_count is {h.hashed}; {tables} layers have a table")
        if h.gating != SQRT_SOFTPLUS or not h.normalize:
            raise ConfigError(
                f"expert_gating_func is {h.gating} and expert_weights_norm {h.normalize}; "
                f"supported: {SQRT_SOFTPLUS}, sqrtsoftplus, and True"
            )
        if len({*h.limits}) > 1:
            raise ConfigError(f"swiglu_clamp_exp is {h.limits}; one limit for all is supported")

    def caches(self) -> list[Any]:
        h = self.config
        near = Sliding(h.window, rope=nn.Rope(h.rope_dims, h.main_base, last=True), absolute=True)
        far = replace(near, rope=replace(self.rotary.rope(), last=True))
        return [
            (far, layer.attn.memory(rate)) if rate else near
            for layer, rate in zip(self.layers, h.rates, strict=False)
        ]

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        h, x = self.config, self.embedded(batch)
        x = x.reshape(h.width, 1, -1).repeat(1, h.streams).reshape(h.wide, -1)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(self.collapse(x))
