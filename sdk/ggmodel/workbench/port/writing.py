"""The model file: hyperparameters, the layer, the model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ..scaffold.source import camel
from . import layouts
from .algebra import Norm, Rotation, sines_of
from .attention import Missing
from .blocks import FeedForward, Layer
from .experts import Experts
from .facts import Keys, near
from .latent import EPS, Latent
from .layouts import LAYERS, written
from .modules import Modules, common
from .recording import Array
from .whole import Whole

_TABLE = 'shape=("width", None)'
_HALF = 40  # characters of an expression that has a line of its own


class Writer(Modules):
    """The file of a model.

    Args:
        saved: its tensors in a checkpoint, by their names.
        name: of the architecture. cls: the class of transformers.
    """

    def __init__(self, whole: Whole, keys: Keys, saved: Mapping[str, Array], name: str, cls: str):
        super().__init__(whole, keys, saved)
        self.name, self.cls = name, cls
        self.eps = keys.usual_eps([norm.eps for norm in self.norms])
        for other in whole.layers[1:]:
            same = self.layer.wiring == other.wiring and self.layer.norms == other.norms
            if not same:
                raise Missing(f"{other.path}: other blocks than {self.layer.path}")

    @property
    def norms(self) -> list[Norm]:
        """All norms."""
        steps = [s.norm for s in (self.whole.inner, *self.whole.before, *self.whole.behind) if s]
        own = [norm for norm in steps if norm is not None]
        layers = [(layer, self._fixed(layer)) for layer in self.whole.layers]
        return [*own, *(n for of, fixed in layers for m, n in of.norms.items() if m not in fixed)]

    @staticmethod
    def _fixed(layer: Layer) -> set[str]:
        """Norms whose epsilon no hyperparameter says."""
        return layer.attention.leaves if isinstance(layer.attention, Latent) else set()

    @property
    def layer_norms(self) -> bool:
        """Whether norms subtract means."""
        return any(norm.kind == "layer" for norm in self.norms)

    @property
    def experts(self) -> Experts | None:
        """The experts of the first layer that has some."""
        feeds = [layer.feed for layer in self.whole.layers]
        return next((f for f in feeds if isinstance(f, Experts)), None)

    def text(self) -> str:
        """The whole file.

        Raises:
            Missing: something that no declaration says.
        """
        self._layer()
        caches = self._caches()
        bases = [n for n, has in (("LayerNorm", self.layer_norms), ("", self.experts)) if has]
        shared = self.experts is not None and self.experts.shared is not None
        bases = [n or ("SharedExperts" if shared else "Experts") for n in bases]
        latent = isinstance(self.layer.attention, Latent)
        bases = ["Latent", *bases] if latent else bases
        base = ", ".join(f"nn.{n}Config" for n in bases) or "nn.DecoderConfig"
        lines, config = self._hyperparameters(), f"{camel(self.name)}Config"
        own = [written(config, base, lines)] if lines or len(bases) > 1 else []
        model = self._model(config if own else base, caches)
        body = "\n\n\n".join([*own, *dict.fromkeys(self.classes), model])
        title = f'"""{self.cls}, as `ggmodel port` wrote it."""'
        return f"{title}\n\n{layouts.imports(body)}\n\n\n{body}\n"

    def _hyperparameters(self) -> list[str]:
        w, a, keys = self.whole, self.layer.attention, self.keys
        dense = [layer for layer in w.layers if isinstance(layer.feed, FeedForward)]
        lines = [
            keys.size("layers", "block_count", "num_hidden_layers", len(w.layers), "layer"),
            keys.size("width", "embedding_length", "hidden_size", w.width),
            keys.size("heads", "attention.head_count", "num_attention_heads", a.heads, "heads"),
        ]
        activation = self.experts.activation if self.experts else ""
        if dense:
            feed = dense[0].feed
            assert isinstance(feed, FeedForward)
            size, activation = dense[0].calls[feed.down].x.shape[-1], feed.gated.activation
            key = "intermediate_size"
            lines.append(keys.size("ffn", "feed_forward_length", key, size, "ff", "inner"))
        elif "intermediate_size" not in keys.saved:
            lines.append('ffn: int = kv("feed_forward_length", hf=lambda hf: 0)')
        latent = isinstance(a, Latent)
        if not latent and (a.kv_heads != a.heads or "num_key_value_heads" in keys.saved):
            key = "num_key_value_heads"
            lines.append(keys.size("kv_heads", "attention.head_count_kv", key, a.kv_heads, "kv"))
        if not latent and ("head_dim" in keys.saved or a.head_dim * a.heads != w.width):
            lines.append(
                keys.size("head_dim", "attention.key_length", "head_dim", a.head_dim, "head", "kv")
            )
        lines.append(keys.eps(self.eps, self.layer_norms))
        rows = len(next(iter(w.calls[w.positions].weights.values()))) if w.positions else 0
        lines += [keys.context(rows, w.first), keys.activation(activation)]
        if isinstance(a, Latent) and not near(a.eps, EPS):
            lines.append("latent_eps: Any = property(lambda h: h.eps)")
        if not near(a.scale, a.head_dim**-0.5):
            lines.append(keys.number("scale", "attention.scale", a.scale))
        if a.softcap:
            lines.append(keys.number("score_cap", "attn_logit_softcapping", a.softcap))
        if near(w.scale, w.width**0.5):
            lines.append("embedding_scale: Any = property(lambda h: h.width**0.5)")
        elif w.scale != 1:
            lines.append(keys.number("embedding_scale", "embedding_scale", w.scale))
        if w.factor != 1:
            lines.append(keys.number("logit_scale", "logit_scale", w.factor))
        if w.cap:
            lines.append(keys.number("logit_cap", "final_logit_softcapping", w.cap))
        ropes = [layer.attention.rope for layer in w.layers if layer.attention.rope.dims]
        far = [a.rope for a in (layer.attention for layer in w.layers) if a.window is None]
        ropes = [rope for rope in far if rope.dims] or ropes
        whole = ropes[0].dims if latent and ropes else a.head_dim
        lines += keys.rope(ropes[0].dims, whole, ropes[0].base) if ropes else []
        lines[:0] = self._fixed_keys()
        windows = keys.windows([layer.attention.window for layer in w.layers])
        lines += [*windows, *self.extra]
        return [*filter(None, lines)]

    def _fixed_keys(self) -> list[str]:
        """The line of keys that nothing here depends on."""
        saved = self.keys.saved
        inner = [k for k, v in saved.items() if isinstance(v, dict) and "rope_parameters" in v]
        names = [f"{k}.rope_parameters.rope_theta" for k in inner]
        if not any(layer.attention.window for layer in self.whole.layers):
            kinds = saved.get("rope_parameters", {})
            local = "sliding_attention"
            names += [f"rope_parameters.{local}.rope_theta"] if local in kinds else []
            # From which layer on there would be windows.
            names += [k for k in saved if k.endswith("window_layers")]
        listed = ", ".join(f'"{name}": ...' for name in names)
        return [f"fixed = {{{listed}}}"] if names else []

    def _layer(self) -> None:
        layer, a = self.layer, self.layer.attention
        names = layouts.named_norms(layer)
        wiring = [
            (names.get(part, part), {names.get(n, n): c for n, c in factors.items()})
            for part, factors in layer.wiring
        ]
        shares = {c for _, factors in wiring for c in factors.values() if c != 1}
        if len(shares) > 1:
            raise Missing(f"{layer.path}: results are added with different factors")
        for share in shares:
            self.extra.append(self.keys.number("residual_scale", "residual_scale", share))
        rms = all(layer.norms[hf].kind == "rms" for hf in names)
        base = layouts.base_of(wiring, not rms)
        usual, kind, plus_one = LAYERS.get(base, ({}, "", False))
        at = common(a.leaves)
        lines = {"attn": self._module("attn", self._attention(a, at), [at], base)}
        feeds, places = self._feeds()
        lines["ffn"] = self._module("ffn", " | ".join(feeds), places, base)
        if layer.second_ffn is not None:
            lines["second_ffn"] = self._second_ffn(layer.second_ffn, base)
        for hf, field in names.items():
            if field in lines:  # it is called again
                continue
            norm = layer.norms[hf]
            same = kind == {"rms": "RMSNorm", "layer": "LayerNorm"}[norm.kind] and norm.weights
            same = same and near(norm.eps, self.eps, 1e-5)
            if not (same and hf in usual.get(field, ()) and norm.plus_one == plus_one):
                lines[field] = self._norm(field, layouts.GGUF[field], hf, norm)
        if base == "nn.LayerNormLayer" and layouts.parallel(wiring):
            self.extra.append("parallel: Any = property(lambda h: True)")
            if "ffn_norm" not in names.values():
                lines["ffn_norm"] = "ffn_norm: Any = None"
        methods = [layouts.forward(wiring)] if base == "Module" else []
        ordered = [lines[field] for field in layouts.ORDER if lines.get(field)]
        self.classes.append(written("Layer", base, ordered, methods))

    def _second_ffn(self, f: FeedForward, base: str) -> str:
        """The line of a second feed-forward part.

        Raises:
            Missing: it is gated, has a norm or another activation than the first.
        """
        first = self.layer.feed
        same_activation = (
            isinstance(first, FeedForward) and f.gated.activation == first.gated.activation
        )
        if not same_activation or f.gated.gate or f.norm:
            raise Missing(f"{self.layer.path}.{f.down}: a second feed-forward part of another kind")
        at = common(f.leaves)
        kind = self._feed_forward(f, at, self.layer.calls, "SecondFeedForward")
        return self._module("second_ffn", kind, [at], base)

    def _feeds(self) -> tuple[list[str], list[str]]:
        """The classes of feed-forward parts, and their paths."""
        kinds, places = dict[type, str](), dict[str, None]()
        for layer in self.whole.layers:
            f = layer.feed
            place = f.place if isinstance(f, Experts) else common(f.leaves)
            places[place] = None
            if type(f) not in kinds:
                kinds[type(f)] = (
                    self._experts(f, layer.path, layer.calls)
                    if isinstance(f, Experts)
                    else self._feed_forward(f, place, layer.calls)
                )
        return [*kinds.values()], [*places]

    @staticmethod
    def _module(field: str, kind: str, at: list[str], base: str) -> str:
        usual = LAYERS.get(base, ({}, "", False))[0].get(field, ())
        if len(at) > 1 or at[0] not in usual:
            names = ", ".join(f'"{name}"' for name in at)
            return f"{field}: {kind} = gguf(hf={names if len(at) == 1 else f'({names})'})"
        given = field == "ffn" and kind == "nn.GatedMLP" and base != "nn.LayerNormLayer"
        return "" if given else f"{field}: {kind}"

    def _model(self, config: str, caches: str) -> str:
        w, lines = self.whole, [f"config: {config}"]
        base = "nn.LayerNormDecoder" if self.layer_norms else "nn.Decoder"
        lines[:0] = self._ignored()
        narrow = w.calls[w.embed].y.shape[-1] != w.width
        table = "shape=(None, None)" if narrow else _TABLE
        if narrow or w.embed not in ("model.embed_tokens", "embed_tokens"):
            lines.append(f'embed: Embedding = gguf("token_embd", hf="{w.embed}", {table})')
        methods = [caches, *self._before(lines)]
        named = f' = gguf("blk", hf="{w.path}", n="layers")'
        lines.append(f"layers: list[Layer]{'' if w.path in ('model.layers', 'layers') else named}")
        methods += self._behind(lines, base)
        methods += self._head(lines)
        head = f'@register("{self.name}", hf="{self.cls}")\n'
        return head + written(camel(self.name), base, lines, methods)

    def _ignored(self) -> list[str]:
        """Tensors of modules that compute nothing of the logits."""
        read = self.whole.leaves - self._constant()
        bias = f"{self.whole.head.rpartition('.')[0]}.bias"
        each = [(layer.attention, layer.feed) for layer in self.whole.layers]
        alone = [n for a, feed in each for n in (a.sinks, a.bias, getattr(feed, "bias", "")) if n]
        numbered = tuple(
            f"{layer.path}.{layer.feed.path}."
            for layer in self.whole.layers
            if isinstance(layer.feed, Experts)
        )
        unread = [
            name
            for name in self.saved
            if name.rpartition(".")[0] not in read
            and not name.startswith((bias, *numbered))
            and not name.endswith(tuple(alone))
        ]
        around = {name: _outermost(name, read) for name in unread}
        patterns = sorted({re.sub(r"\.\d+\.", ".*.", name) for name in around.values()})
        quoted = [f'"{pattern}"' for pattern in patterns]
        line = f"ignore_hf = ({', '.join(quoted)}{',' * (len(quoted) == 1)})"
        if len(line) > 96:
            listed = "".join(f"\n        {name}," for name in quoted)
            line = f"ignore_hf = ({listed}\n    )"
        return [line] if patterns else []

    def _constant(self) -> set[str]:
        """Leaves outside of layers whose results enter them in another way, as angles."""
        w = self.whole
        steps = [s.path for s in (w.inner, *w.before, *w.behind) if s]
        return w.calls.keys() - {w.embed, w.positions, w.types, w.head, *steps}

    def _head(self, lines: list[str]) -> list[str]:
        w, call = self.whole, self.whole.calls[self.whole.head]
        value = "super().forward(ctx, batch)"
        narrow = call.x.shape[-1] != w.width
        table = "shape=(None, None)" if narrow else _TABLE
        bias = next((k for k in call.weights if "bias" in k), "")
        tied = bias and f"{w.head}.weight" not in self.saved
        if tied:
            lines.append(f'head: Linear = gguf("token_embd", hf="{w.embed}", {table})')
        elif narrow or w.head != "lm_head":
            lines.append(f'head: Linear = gguf("output", "token_embd", hf="{w.head}", {table})')
        if tied:
            stored = f"{w.head}.bias"
            around = f"{w.head.rpartition('.')[0]}.bias"
            name = stored if stored in self.saved else around
            if name not in self.saved:
                raise Missing(f"{w.head}: a bias that the checkpoint does not have")
            lines[:] = [line.replace(f'"{name}",', "") for line in lines]
            more = f'hf="{name}", shape=(None,)'
            lines.append(f'head_bias: Tensor = gguf("output_bias.weight", {more})')
            value = f"{value} + self.head_bias"
        if w.cap:
            value = f"nn.softcap({value}, self.config.logit_cap)"
        if value == "super().forward(ctx, batch)":
            return []
        return [
            f"    def forward(self, ctx: Context, batch: Batch) -> Tensor:\n        return {value}"
        ]

    def _before(self, lines: list[str]) -> list[str]:
        w, value = self.whole, "super().embedded(batch)"
        sines = w.sines
        if w.inner is not None and w.inner.norm is not None:
            lines.append(self._norm("embed_norm", "token_embd_norm", w.inner.path, w.inner.norm))
            value = f"self.embed_norm({value})"
        if w.positions and f"{w.positions}.weight" not in self.saved:
            sines = sines_of(w.calls[w.positions].y)
            if sines is None:
                raise Missing(f"{w.positions}: positions that are computed by a rule of their own")
        narrow = w.calls[w.embed].y.shape[-1] != w.width
        width = "None" if narrow else '"width"'
        if sines is not None:
            self.classes.insert(0, layouts.sines(sines))
            name = '"position_embd.weight", root=True, default=_positions'
            lines.append(f"places: Tensor | None = gguf({name})")
            value += " + self.places.rows(batch.positions)"
        elif w.positions:
            op = f', op=LastRows("context", {w.first})' if w.first else ""
            more = f'hf="{w.positions}"{op}, shape=({width}, "context")'
            lines.append(f'places: Embedding = gguf("position_embd", {more})')
            value += " + self.places(batch.positions)"
        body = ""
        if w.types:
            lines.append(
                f'types: Embedding = gguf("token_types", hf="{w.types}", shape=({width}, None))'
            )
            if len(value) > _HALF:
                body, value = f"        x = {value}\n", "x"
            value += " + self.types.weight.slice(1, 0, 1).cast(DType.F32)"
        for step in w.before:
            if step.norm is not None:
                width = w.calls[step.path].x.shape[-1]
                shape = "width" if width == w.width else None
                lines.append(
                    self._norm("embed_norm", "token_embd_norm", step.path, step.norm, shape)
                )
                value = f"self.embed_norm({value})"
            elif "embed_proj" in value:
                raise Missing(f"{step.path}: a second linear map before the first layer")
            else:
                more = f'hf="{step.path}", shape=(None, "width")'
                lines.append(f'embed_proj: Linear = gguf("embd_proj", {more})')
                value = f"self.embed_proj({value})"
        if value == "super().embedded(batch)":
            return []
        return [f"    def embedded(self, batch: Batch) -> Tensor:\n{body}        return {value}"]

    def _behind(self, lines: list[str], base: str) -> list[str]:
        w, behind = self.whole, self.whole.behind
        if len(behind) == 1 and (norm := behind[0].norm) is not None:
            layer_norm = base == "nn.LayerNormDecoder"
            usual = ("model.norm",) if layer_norm else ("model.norm", "norm")
            same = (norm.kind == "layer") == layer_norm and norm.weights and not norm.plus_one
            same = same and near(norm.eps, self.eps, 1e-5)
            if not (same and behind[0].path in usual):
                lines.append(self._norm("norm", "output_norm", behind[0].path, norm))
            return []
        value, norms = "x", [step for step in behind if step.norm is not None]
        for step in behind:
            if step.norm is not None:
                last = step is norms[-1]
                field, gguf = ("norm", "output_norm") if last else ("norm_", "output_norm_in")
                wide = "width" if w.calls[step.path].x.shape[-1] == w.width else None
                lines.append(self._norm(field, gguf, step.path, step.norm, wide))
                value = f"self.{field}({value})"
            elif step.activation:
                value = f'nn.activate("{step.activation}", {value})'
            elif "self.dense" in value:
                raise Missing(f"{step.path}: a second linear map before the head")
            else:
                shape = 'shape=("width", None)'
                lines.append(f'dense: Linear = gguf("output_dense", hf="{step.path}", {shape})')
                value = f"self.dense({value})"
        if not norms:
            lines.append("norm: Any = None")
        return [layouts.HIDDEN.format(value=value)]

    def _caches(self) -> str:
        layers = [layer.attention for layer in self.whole.layers]
        if not all(a.causal for a in layers):
            raise Missing("attention to later tokens")
        local = [a.window is not None for a in layers]
        each = {
            kind: [a.rope for a, near in zip(layers, local, strict=True) if near == kind]
            for kind in (True, False)
        }
        for ropes in each.values():
            if any(not rope.alike(ropes[0]) for rope in ropes):
                raise Missing("layers that rotate otherwise than others of their kind")
        far, near = (self._rope(each[flag], flag) for flag in (False, True))
        if any(local):
            both = far == near or not each[False]
            lines = [] if both else [f"near, far = {near}, {far}"]
            ropes = near if both else "[near if local else far for local in h.local]"
            lines += [f"return Sliding.where(h.local, h.window, {ropes})"]
            body = "\n        ".join(["h = self.config", *lines])
            return f"    def caches(self) -> list[Causal | Sliding]:\n        {body}"
        absolute = self.whole.positions or self.whole.sines
        inner = "absolute=True" if absolute else "" if far == "None" else far
        inner = f"max_bias={layers[0].max_bias}" if layers[0].max_bias else inner
        made = f"[Causal({inner})] * self.config.layers"
        return f"    def caches(self) -> list[Causal]:\n        return {made}"

    def _rope(self, ropes: list[Rotation], local: bool) -> str:
        """The rope of layers of a kind, as an expression."""
        if not ropes or not ropes[0].dims:
            return "None"
        kind = "" if ropes[0].neighbours else "RopeType.NEOX"
        others = [layer.attention for layer in self.whole.layers]
        far = [a.rope for a in others if a.window is None and a.rope.dims]
        if not local or not far or far[0].alike(ropes[0]):
            return f"self.rotary.rope({kind})"
        self.extra.append(self.keys.local_base(ropes[0].base))
        named = f", type={kind}" if kind else ""
        return f"nn.Rope(h.rope_dims, h.local_base{named})"


def _outermost(name: str, read: Collection[str]) -> str:
    """The pattern of all tensors of the outermost module around one of which none is read."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        module = ".".join(parts[:i])
        if not any(f"{path}.".startswith(f"{module}.") for path in read):
            return f"{module}.*"
    return name
