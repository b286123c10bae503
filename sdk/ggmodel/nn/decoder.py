"""A usual decoder: attention over a cache, the pattern of local layers, the way through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from ..errors import ConfigError
from ..ml import Context, Tensor
from ..model.batch import Batch
from ..model.cache import LayerMemory
from ..model.model import Model
from ..model.module import Module, gguf, kv
from ..model.operations import PermuteRope
from .layers import Embedding, GatedMLP, Linear, RMSNorm, activation
from .rope import RopeConfig, Rotary


def attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache: LayerMemory,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    vmla: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Stores keys and values, then attends to all positions that each row sees.

    Args:
        q: [d, heads, n]. k: [d, kv heads, n]. v: [dv, kv heads, n]. No k and v (None) in a layer
            that shares those of another, `cache.shares`.
        scale: of the scores, usually 1/√d.
        softcap, sinks, vmla, bias: see `Tensor.scaled_dot_product_attention`.

    Returns:
        F32 [dv · heads, n].
    """
    if k is not None and v is not None:
        cache.put(k, v)
    keys, values, mask = cache.get()
    out = cache.spread(q).scaled_dot_product_attention(
        keys,
        values,
        mask,
        sinks,
        None if cache.spreads else vmla,
        scale=scale,
        softcap=softcap,
        cache_config_applied=True,
        bias=bias,
        max_bias=cache.max_bias,
    )
    if cache.spreads:
        out = cache.spread(out)
        if vmla is not None:
            out = vmla.mulmat(out.permute(0, 2, 1)).permute(0, 2, 1).contiguous()
    return out.reshape(out.dim(0) * out.dim(1), -1)


_KINDS = {"full_attention": False, "sliding_attention": True}


def sliding_window(hf: Mapping[str, Any]) -> int | None:
    """The length of a config's window; None for none, also if `use_sliding_window` is false."""
    window = hf.get("sliding_window")
    return window if hf.get("use_sliding_window", True) else None


def sliding_layers(hf: Mapping[str, Any]) -> list[bool] | None:
    """Layer → whether it is local, as a config says it: a list of `layer_types`;
    `max_window_layers`, the first layers that see all; or a `sliding_window_pattern`, of which
    every n-th layer sees all, or letters of which "L" is local. None for a config without, and if
    `use_sliding_window` is false.

    Raises:
        ConfigError: another kind of layer or pattern.
    """
    kinds, first = hf.get("layer_types"), hf.get("max_window_layers")
    patterns = [hf.get(key) for key in ("sliding_window_pattern", "_sliding_window_pattern")]
    pattern = next((p for p in patterns if p is not None), None)
    if not hf.get("use_sliding_window", True):
        return None
    if kinds is not None:
        unknown = [kind for kind in kinds if kind not in _KINDS]
        if unknown:
            raise ConfigError(f"layer_types has {unknown[0]!r:.40}; supported: {', '.join(_KINDS)}")
        return [_KINDS[kind] for kind in kinds]
    if pattern is None and first is None:
        return None
    layers = range(hf["num_hidden_layers"])
    if first is not None:
        return [i >= first for i in layers]
    if isinstance(pattern, str) and {*pattern} and {*pattern} <= {*"LG"}:
        return [pattern[i % len(pattern)] == "L" for i in layers]
    if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 0:
        raise ConfigError(
            f"sliding_window_pattern is {pattern!r:.40}; supported: a number from 0 on, letters L "
            "and G"
        )
    return local_layers([pattern], len(layers), 1)


def local_layers(pattern: list, layers: int, window: int) -> list[bool]:
    """Layer → whether it is local: sees a window of the last positions only.

    Args:
        pattern: `attention.sliding_window_pattern`: a flag for each layer, or one number n: every
            n-th layer sees all positions; with 1 all do, with 0 none does.
        window: its length; with 0 no layer is local.

    Raises:
        ConfigError: another number of flags than of layers, or no pattern at all.
    """
    if window < 1:
        return [False] * layers
    if len(pattern) == 1 and not isinstance(pattern[0], bool):
        every = pattern[0]
        if not isinstance(every, int) or every < 0:
            raise ConfigError(f"a sliding_window_pattern of {every!r}; it must be 0 or more")
        return [every == 0 or (i + 1) % every != 0 for i in range(layers)]
    if len(pattern) != layers:
        raise ConfigError(f"a sliding_window_pattern of {len(pattern)} for {layers} layers")
    return [bool(local) for local in pattern]


class DecoderConfig(RopeConfig):
    """The usual hyperparameters of a decoder; a subclass redeclares those that differ."""

    fixed = {"layer_types": lambda hf: ["full_attention"] * hf["num_hidden_layers"]}

    layers: int = kv("block_count", hf="num_hidden_layers")
    width: int = kv("embedding_length", hf="hidden_size")
    ffn: int = kv("feed_forward_length", hf="intermediate_size")
    heads: int = kv("attention.head_count", hf="num_attention_heads")
    kv_heads: int = kv("attention.head_count_kv", hf="num_key_value_heads", default="heads")
    head_dim: int = kv("attention.key_length", hf="head_dim", default=lambda h: h.width // h.heads)
    value_dim: int = kv("attention.value_length", hf="head_dim", default="head_dim")
    eps: float = kv("attention.layer_norm_rms_epsilon", hf="rms_norm_eps")
    context: int = kv("context_length", hf="max_position_embeddings")
    activation: str = activation("silu")
    scale: Any = property(lambda h: h.head_dim**-0.5)  # of scores of attention
    score_cap: Any = property(lambda h: 0.0)  # bounds them; 0 is none
    # Factors on what enters the first layer, on what each part of a layer adds, and on logits.
    embedding_scale: Any = property(lambda h: 1.0)
    residual_scale: Any = property(lambda h: 1.0)
    logit_scale: Any = property(lambda h: 1.0)
    twice_width = property(lambda h: 2 * h.width)
    q_width = property(lambda h: h.heads * h.head_dim)
    k_width = property(lambda h: h.kv_heads * h.head_dim)
    v_width = property(lambda h: h.kv_heads * h.value_dim)
    out_width = property(lambda h: h.heads * h.value_dim)
    qkv_width = property(lambda h: h.q_width + h.k_width + h.v_width)
    gate_up_width = property(lambda h: 2 * h.ffn)
    # Layer → whether it is local, for subclasses with a `window` and a `pattern`.
    local = property(lambda h: local_layers(h.pattern, h.layers, h.window))

    @property
    def hidden(self) -> int:
        """
        Raises:
            ConfigError: always; it is the former name of `width`.
        """
        raise ConfigError(f"{type(self).__name__}.hidden is called width now")


class DraftingConfig(DecoderConfig):
    """The hyperparameters of a decoder with layers for multi-token prediction (MTP) behind all
    others. They draft further tokens, and are not loaded."""

    fixed = {"num_nextn_predict_layers": ..., "num_mtp_layers": ...}

    blocks: int = kv("block_count", hf="num_hidden_layers")
    mtp_layers: int = kv("nextn_predict_layers", default=0, least=0)
    layers: Any = property(lambda h: h.blocks - h.mtp_layers)


def keep_rows(rows: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The rows I32 [m] of each tensor [d, n]: [d, m]; None keeps all rows. The last layer drops the
    rows whose results are not wanted, right after attention."""
    return tensors if rows is None else tuple(x.rows(rows) for x in tensors)


def scaled(x: Tensor, factor: float) -> Tensor:
    """factor · x, of any shape; x itself if the factor is 1."""
    return x if factor == 1 else x.scale(factor)


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap), of any shape; x itself if cap is 0."""
    return x.scale(1 / cap).tanh().scale(cap) if cap else x


class Attention(Module):
    """The usual attention: grouped queries, rotary positions where the layer's cache has a rope.
    Biases are computed with where a file has them. It reads the config's `heads`, `kv_heads`,
    `head_dim`, `value_dim`, `scale` and `score_cap` (`DecoderConfig`).

    Attributes:
        q_norm, k_norm: norms of each query and key before they are rotated, [head_dim, heads, n] →
            the same; None in most architectures. A subclass that has them declares the fields.
        sinks: one more score for each head, F32 [heads]; likewise.
    """

    q: Linear = gguf("attn_q", hf="q_proj", shape=("width", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", shape=("width", "k_width"))
    v: Linear = gguf("attn_v", hf="v_proj", shape=("width", "v_width"))
    out: Linear = gguf("attn_output", hf="o_proj", shape=("out_width", "width"))
    q_norm: Any = None
    k_norm: Any = None
    sinks: Any = None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [width, n] → queries [head_dim, heads, n], keys [head_dim, kv_heads, n] and values
        [value_dim, kv_heads, n], not yet rotated."""
        h = self.config
        q = self.q(x).reshape(h.head_dim, h.heads, -1)
        k = self.k(x).reshape(h.head_dim, h.kv_heads, -1)
        v = self.v(x).reshape(h.value_dim, h.kv_heads, -1)
        return *self._normed(q, k), v

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as `project` has them, normed where there are norms."""
        q = q if self.q_norm is None else self.q_norm(q)
        return q, k if self.k_norm is None else self.k_norm(k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerMemory) -> Tensor:
        """Rotated queries and keys, and values, as `project` has them → [width, n]."""
        h = self.config
        y = attention(q, k, v, cache, scale=h.scale, softcap=h.score_cap, sinks=self.sinks)
        return self.out(y)

    def forward(self, x: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        """x [width, n] → [width, n] F32."""
        q, k, v = self.project(x)
        if cache.rope is not None:
            q, k = cache.rotate(q, batch.positions), cache.rotate(k, batch.positions)
        return self.attend(q, k, v, cache)


class NormedAttention(Attention):
    """The same with norms of each query and key before they are rotated."""

    q_norm: RMSNorm = gguf("attn_q_norm", hf="q_norm", shape=("head_dim",))
    k_norm: RMSNorm = gguf("attn_k_norm", hf="k_norm", shape=("head_dim",))


class PermutedAttention(Attention):
    """The same for files in which the rows of queries and keys are permuted: pairs that rotate
    together are neighbours (`RopeType.NORM`), where checkpoints have them half a head apart."""

    q: Linear = gguf("attn_q", hf="q_proj", op=PermuteRope("heads"), shape=("width", "q_width"))
    k: Linear = gguf("attn_k", hf="k_proj", op=PermuteRope("kv_heads"), shape=("width", "k_width"))


class FusedAttention(Attention):
    """The same with queries, keys and values as one matrix: rows of all queries, then of all keys,
    then of all values."""

    q: Any = None
    k: Any = None
    v: Any = None
    qkv: Linear = gguf("attn_qkv", hf=("qkv_proj", "query_key_value"), shape=("width", "qkv_width"))
    out: Linear = gguf("attn_output", hf=("o_proj", "dense"), shape=("out_width", "width"))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.config
        y = self.qkv(x).reshape(h.head_dim, h.heads + 2 * h.kv_heads, -1)
        q, k, v = y.chunk_sections(1, h.heads, h.kv_heads, h.kv_heads)
        return *self._normed(q, k), v


class PreNormLayer(Module):
    """x + attn(norm(x)), then x + ffn(norm(x)); what is added has the config's `residual_scale`. A
    subclass annotates `attn`, and `ffn` if it is no `GatedMLP`."""

    attn_norm: RMSNorm = gguf("attn_norm", hf="input_layernorm", shape=("width",))
    attn: Module = gguf(hf="self_attn")
    ffn_norm: RMSNorm = gguf("ffn_norm", hf="post_attention_layernorm", shape=("width",))
    ffn: GatedMLP = gguf(hf="mlp")

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, outputs: Tensor | None, *more: Any
    ) -> Tensor:
        """x [width, n] → [width, n], or the rows `outputs` of it. `more` goes to `attn`."""
        share = self.config.residual_scale
        y = self.attn(self.attn_norm(x), batch, cache, *more)
        x, y = keep_rows(outputs, x, y)
        x = x + scaled(y, share)
        return x + scaled(self.ffn(self.ffn_norm(x)), share)


class PostNormLayer(Module):
    """x + norm(attn(x)), then x + norm(ffn(x)). A subclass annotates `attn`, and `ffn` if it is no
    `GatedMLP`."""

    attn: Module = gguf(hf="self_attn")
    attn_norm: RMSNorm = gguf(
        "post_attention_norm", hf="post_attention_layernorm", shape=("width",)
    )
    ffn: GatedMLP = gguf(hf="mlp")
    ffn_norm: RMSNorm = gguf("post_ffw_norm", hf="post_feedforward_layernorm", shape=("width",))

    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, outputs: Tensor | None
    ) -> Tensor:
        """x [width, n] → [width, n], or the rows `outputs` of it."""
        x, y = keep_rows(outputs, x, self.attn(x, batch, cache))
        x = x + self.attn_norm(y)
        return x + self.ffn_norm(self.ffn(x))


class PlainDecoder(Model):
    """Embedding, layers, norm, head. A subclass annotates `config` and `layers`, and writes
    `caches`."""

    embed: Embedding = gguf(
        "token_embd", hf=("model.embed_tokens", "embed_tokens"), shape=("width", None)
    )
    layers: list[Module] = gguf("blk", hf=("model.layers", "layers"), n="layers")
    norm: RMSNorm = gguf("output_norm", hf=("model.norm", "norm"), shape=("width",))
    head: Linear = gguf("output", "token_embd", hf="lm_head", shape=("width", None))

    def __init_subclass__(cls, text: str | Sequence[str] = (), **options: Any) -> None:
        """
        Args:
            text: what names of the embedding, the layers and the norm begin with in a checkpoint,
                alternates in order of preference; "model" by default. The head keeps its `hf`.
        """
        super().__init_subclass__(**options)
        prefixes = (text,) if isinstance(text, str) else text
        parts = {"embed": "embed_tokens", "layers": "layers", "norm": "norm"} if prefixes else {}
        for field, name in parts.items():
            hf = tuple(f"{prefix}.{name}" for prefix in prefixes)
            setattr(cls, field, replace(getattr(cls, field), hf=hf))

    def embedded(self, batch: Batch) -> Tensor:
        """F32 [width, n] that enters the first layer: the embeddings, with the config's
        `embedding_scale` if it has one."""
        return scaled(self.embed(batch.inputs), getattr(self.config, "embedding_scale", 1.0))

    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x = self.embedded(batch)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return self.norm(x)


class Decoder(PlainDecoder):
    """The same with rotary positions: the memory of each layer has its rope.

    Attributes:
        rotary: the factors of scaled rotary positions, where a file has them.
    """

    rotary: Rotary

    def left_out(self) -> str:
        return self.rotary.left_out()


_MOST_DRAFTING = 8  # layers behind the others in published checkpoints


class DraftingDecoder(Decoder):
    """A decoder whose config is a `DraftingConfig`.

    Attributes:
        drafts_hf: patterns of further tensors of these layers in a checkpoint.
    """

    drafts_hf: ClassVar[tuple[str, ...]] = ()

    @property
    def ignore(self) -> tuple[str, ...]:
        h = self.config
        return tuple(f"blk.{i}.*" for i in range(h.layers, h.blocks))

    @property
    def ignore_hf(self) -> tuple[str, ...]:
        h, field = self.config, cast("Any", type(self).layers)
        layers = (f"{name}.{h.blocks + i}.*" for name in field.hf for i in range(_MOST_DRAFTING))
        return (*self.drafts_hf, *layers)

    def validate(self) -> None:
        h = self.config
        if h.layers < 1:
            raise ConfigError(f"{h.mtp_layers} of {h.blocks} layers are MTP layers; none is left")
