"""The modules of a layer as declarations: attention, feed-forward parts, experts, norms."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from . import layouts
from .algebra import Norm
from .attention import Attention, Missing, Projection
from .blocks import FeedForward
from .experts import Experts
from .facts import Keys, near
from .latent import Latent
from .layouts import written
from .recording import Array, Call
from .whole import Whole


def common(names: Iterable[str]) -> str:
    """The path of the innermost module around all of these."""
    split = [name.split(".")[:-1] for name in names]
    same = itertools.takewhile(lambda parts: len({*parts}) == 1, zip(*split, strict=False))
    return ".".join(parts[0] for parts in same)


def within(name: str, prefix: str) -> str:
    """A path, seen from a module around it."""
    return name.removeprefix(f"{prefix}.") if prefix else name


class Modules:
    """The classes of a model's modules.

    Args:
        saved: its tensors in a checkpoint, by their names.

    Attributes:
        layer: the first layer, which all others are like.
        eps: the epsilon of the config class.
        classes: the text of each class, and `extra`, lines of the config class.
    """

    def __init__(self, whole: Whole, keys: Keys, saved: Mapping[str, Array]):
        self.whole, self.keys, self.saved = whole, keys, saved
        self.layer = whole.layers[0]
        self.eps = 0.0
        self.extra: list[str] = []
        self.classes: list[str] = []

    def _norm(self, field: str, gguf: str, hf: str, norm: Norm, shape: str | None = "width") -> str:
        if not norm.weights:
            op = "rms_norm" if norm.kind == "rms" else "layer_norm"
            self.classes.insert(0, layouts.PLAIN_NORM.format(op=op))
            return f"{field}: Norm"
        kind = {"rms": "RMSNorm", "layer": "LayerNorm"}[norm.kind]
        if not near(norm.eps, self.eps, 1e-5):
            self.classes.insert(0, layouts.CONSTANT_NORM.format(kind=kind, eps=f"{norm.eps:g}"))
            kind = f"Constant{kind}"
        op = ", op=AddConstant(1)" if norm.plus_one else ""
        dim = "None" if shape is None else f'"{shape}"'
        return f'{field}: {kind} = gguf("{gguf}", hf="{hf}"{op}, shape=({dim},))'

    def _linear(self, field: str, gguf: str, hf: str, call: Call, shape: str, op: str = "") -> str:
        op = op or ("Transpose()" if _transposed(call) else "")
        more = f", op={op}" if op else ""
        return f'{field}: Linear = gguf("{gguf}", hf="{hf}"{more}, shape=({shape}))'

    def _class(self, name: str, base: str, lines: list[str], methods: Sequence[str]) -> str:
        """A class of its own; the base's name where it needs none."""
        if not lines and not methods:
            return base
        self.classes.append(written(name, base, lines, methods))
        return name

    def _attention(self, a: Attention, prefix: str) -> str:
        if isinstance(a, Latent):
            return "nn.LatentAttention"
        calls, lines, methods = self.layer.calls, list[str](), list[str]()
        fused = a.q.source == a.k.source == a.v.source
        base, out = ("nn.FusedAttention" if fused else "nn.Attention"), ("o_proj",)
        if fused:
            out = ("o_proj", "dense")
            lines += self._fused(a, prefix)
        else:
            lines += self._apart(a, prefix)
        shape, hf = '"out_width", "width"', within(a.out, prefix)
        if bias := next((b for layer in self.whole.layers if (b := layer.attention.bias)), ""):
            weights = [
                f'weight: Tensor = gguf("weight", hf="{hf}.weight")',
                f'bias: Tensor | None = gguf("bias", hf="{within(bias, prefix)}")',
            ]
            self.classes.append(written("Out", "Linear", weights))
            lines.append(f'out: Out = gguf("attn_output", hf="", shape=({shape}))')
        elif hf not in out or _transposed(calls[a.out]):
            lines.append(self._linear("out", "attn_output", hf, calls[a.out], shape))
        if a.q.norm or a.k.norm:
            norms = self._query_norms(a, prefix)
            if not fused and not norms:
                base = "nn.NormedAttention"
            lines += norms
            each = self.layer.norms[a.q.norm].width == a.head_dim
            methods += [layouts.FUSED_NORMS] if fused else [] if each else [layouts.WIDE_NORMS]
        if a.rope.backwards:
            if methods or fused or a.rope.neighbours or a.rope.dims != a.head_dim:
                raise Missing(f"{a.q.source}: queries that rotate backwards, in parts or fused")
            methods.append(layouts.BACKWARDS)
        if a.sinks:
            hf, more = within(a.sinks, prefix), 'shape=("heads",)'
            lines.append(f'sinks: Tensor = gguf("attn_sinks.weight", hf="{hf}", {more})')
        if a.out_norm:
            norm = self.layer.norms[a.out_norm]
            hf = within(a.out_norm, prefix)
            lines.append(self._norm("out_norm", "attn_sub_norm", hf, norm, "out_width"))
            methods.append(layouts.NORMED_RESULT)
        return self._class("Attention", base, lines, methods)

    def _apart(self, a: Attention, prefix: str) -> list[str]:
        lines = list[str]()
        for part in "qkv":
            p: Projection = getattr(a, part)
            call = self.layer.calls[p.source]
            if not p.plain or call.y[0].size != sum(map(len, p.order)):
                raise Missing(f"{self.layer.path}.{p.source}: rows in an order of its own")
            if within(p.source, prefix) != f"{part}_proj" or _transposed(call):
                shape = f'"width", "{part}_width"'
                hf = within(p.source, prefix)
                lines.append(self._linear(part, f"attn_{part}", hf, call, shape))
        return lines

    def _fused(self, a: Attention, prefix: str) -> list[str]:
        order = [i for p in (a.q, a.k, a.v) for row in p.order for i in row]
        call, hf = self.layer.calls[a.q.source], within(a.q.source, prefix)
        op = ""
        if order == _grouped(len(order), a.heads, (0, 1, 2)) and a.heads > 1:
            op = 'PartsOfHeads("heads")'
        elif order != [*range(len(order))]:
            return self._reordered(a, order, call, hf)
        if not op and not _transposed(call) and hf in ("qkv_proj", "query_key_value"):
            return []
        return [self._linear("qkv", "attn_qkv", hf, call, '"width", "qkv_width"', op)]

    def _reordered(self, a: Attention, order: list[int], call: Call, hf: str) -> list[str]:
        """A matrix whose rows lie in blocks of queries, keys and values, in another order."""
        blocks = [n for n in range(1, a.heads + 1) if a.heads % n == 0]
        for n, parts in itertools.product(blocks, itertools.permutations(range(3))):
            if order == _grouped(len(order), n, parts) and a.heads == a.kv_heads:
                rows = f'HeadRows("{hf}.weight", {parts}, ("block",) * 3, {n})'
                self.classes.append(
                    written("QKV", "Linear", [f'weight: Tensor = gguf("weight", hf={rows})'])
                )
                self.extra.append(f"block = property(lambda h: h.q_width // {n})")
                return ['qkv: QKV = gguf("attn_qkv", hf="", shape=("width", "qkv_width"))']
        raise Missing(f"{self.layer.path}.{a.q.source}: rows in an order of its own")

    def _query_norms(self, a: Attention, prefix: str) -> list[str]:
        if not (a.q.norm and a.k.norm) or a.v.norm:
            raise Missing(f"{a.q.source}: a norm of queries or keys alone, or of values")
        norms = [self.layer.norms[p.norm] for p in (a.q, a.k)]
        names = [within(p.norm, prefix) for p in (a.q, a.k)]
        each = [norm.width == a.head_dim for norm in norms]
        plain = all(n.kind == "rms" and n.weights and not n.plus_one for n in norms)
        fused = a.q.source == a.k.source
        if all(each) and plain and names == ["q_norm", "k_norm"] and not fused:
            return []
        if fused and not all(each):
            raise Missing(f"{a.q.norm}: a norm of all heads of a fused matrix")
        shapes = ["head_dim" if each[0] else f"{part}_width" for part in "qk"]
        return [
            self._norm(f"{part}_norm", f"attn_{part}_norm", hf, norm, shape)
            for part, hf, norm, shape in zip("qk", names, norms, shapes, strict=True)
        ]

    def _feed_forward(
        self, f: FeedForward, prefix: str, calls: dict[str, Call], kind: str = "FeedForward"
    ) -> str:
        g, lines, methods = f.gated, list[str](), list[str]()
        short, ffn = ("ffn", '"ffn"') if kind == "FeedForward" else ("ffn2", "None")
        named = {"up": g.up, "down": f.down}
        if not g.gate:
            base, usual = "nn.MLP", {"up": ("up_proj", "c_fc", "dense_h_to_4h")}
            usual["down"] = ("down_proj", "c_proj", "dense_4h_to_h")
        elif g.halves:
            base, usual = "nn.FusedGatedMLP", {"up": ("gate_up_proj",), "down": ("down_proj",)}
            methods += [layouts.SWAPPED] if g.halves == "swapped" else []
        else:
            base, named = "nn.GatedMLP", {"gate": g.gate, **named}
            usual = {part: (f"{part}_proj",) for part in named}
        for part, leaf in named.items():
            named_so = within(leaf, prefix) in usual[part] and not _transposed(calls[leaf])
            if named_so and kind == "FeedForward":
                continue
            wide = '"gate_up_width"' if g.halves else ffn
            shape = f'{ffn}, "width"' if part == "down" else f'"width", {wide}'
            hf = within(leaf, prefix)
            lines.append(self._linear(part, f"{short}_{part}", hf, calls[leaf], shape))
        if f.norm:
            if g.halves:
                raise Missing(f"{f.norm}: a norm behind the gate of a fused matrix")
            norm = self.layer.norms[f.norm]
            lines.append(self._norm("norm", "ffn_sub_norm", within(f.norm, prefix), norm, "ffn"))
            methods.append(layouts.NORMED_GATE if g.gate else layouts.NORMED_MLP)
        return self._class(kind, base, lines, methods)

    def _experts(self, e: Experts, layer: str, calls: dict[str, Call]) -> str:
        keys, lines = self.keys, list[str]()
        if within(e.router, e.place) != "gate":
            shape = 'shape=("width", "experts")'
            hf = within(e.router, e.place)
            lines.append(f'router: Linear = gguf("ffn_gate_inp", hf="{hf}", {shape})')
        lines += self._stacked(e, layer)
        if e.bias:
            lines.append(f'bias: Tensor = nn.selection_bias("{within(e.bias, e.place)}")')
        if e.shared is not None:
            at = common([e.shared.gate, e.shared.up, e.down])
            parts = (e.shared.gate, e.shared.up, e.down)
            if [within(n, at) for n in parts] != ["gate_proj", "up_proj", "down_proj"]:
                raise Missing(f"{layer}.{at}: shared experts with names of their own")
            lines.append(f'shared: nn.SharedExpert = gguf(hf="{within(at, e.place)}")')
            if e.share:
                hf, name = within(e.share, e.place), "ffn_gate_inp_shexp"
                lines.append(f'share: Linear = gguf("{name}", hf="{hf}", shape=("width", 1))')
            self._shared_width(e, calls[e.down].x.shape[-1])
        names = ("n_routed_experts", "num_experts", "num_local_experts")
        if not any(near(keys.saved.get(n), e.count) for n in names):
            self.extra.append(keys.size("experts", "expert_count", "", e.count, "expert") or "")
        for field, gguf, key, n in (
            ("experts_used", "expert_used_count", "num_experts_per_tok", e.used),
            ("expert_ffn", "expert_feed_forward_length", "moe_intermediate_size", e.ffn),
        ):
            self.extra.append(keys.size(field, gguf, key, n, "topk", "top_k", "size") or "")
        self._routing(e)
        share = "sigmoid" if e.sigmoid else "softmax"
        methods = [layouts.SCORED.format(share=share)] if e.scored else []
        if e.norm is not None:
            lines.append(self._norm("norm", "post_ffw_norm", within(e.behind, e.place), e.norm))
            methods.append(layouts.NORMED_EXPERTS)
        return self._class("Experts", "nn.GatedExperts", lines, methods)

    def _shared_width(self, e: Experts, width: int) -> None:
        saved = self.keys.saved
        counts = [saved.get(n) for n in ("n_shared_experts", "num_shared_experts")]
        product = [n * e.ffn for n in counts if isinstance(n, int)]
        if near(saved.get("shared_expert_intermediate_size"), width) or width in product[:1]:
            return
        for key in (k for k, n in saved.items() if "shared" in k and near(n, width / e.ffn)):
            line = f'shared_experts: int = kv("expert_shared_count", hf="{key}", default=0)'
            self.extra.append(line)
            return
        name = "expert_shared_feed_forward_length"
        line = self.keys.size("shared_ffn", name, "", width, "shared", "intermediate")
        self.extra.append(line or "")

    def _routing(self, e: Experts) -> None:
        saved = self.keys.saved
        if e.sigmoid:
            kind = "hf=lambda hf: nn.SIGMOID, default=nn.SIGMOID"
            self.extra.append(f'gating: int = kv("expert_gating_func", {kind})')
        if saved.get("norm_topk_prob", False) != e.normalize:
            self.extra.append(f"normalize: Any = property(lambda h: {e.normalize})")
        if not near(saved.get("routed_scaling_factor", 1.0), e.scale):
            self.extra.append(self.keys.number("expert_scale", "expert_weights_scale", e.scale))

    def _stacked(self, e: Experts, layer: str) -> list[str]:
        """The lines of the experts' matrices, which a checkpoint numbers."""
        at = re.escape(f"{layer}.{e.leaf}")
        found = {m[1] for n in self.saved if (m := re.fullmatch(rf"{at}\.0\.(\w+)\.weight", n))}
        parts = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
        if found == {"w1", "w2", "w3"}:
            parts = {"gate": "w1", "up": "w3", "down": "w2"}
        elif found != {*parts.values()}:
            return self._whole_stacks(e, layer)
        if (at := within(e.leaf, e.place)) != "experts":
            sources = {part: f'Stack("{at}.{{}}.{hf}", "experts")' for part, hf in parts.items()}
            return [self._stack(part, source) for part, source in sources.items()]
        if "gate_proj" in found:
            return []
        return [f'{p}: ExpertLinear = nn.stacked("{p}", "{hf}")' for p, hf in parts.items()]

    @staticmethod
    def _stack(part: str, source: str, kind: str = "ExpertLinear") -> str:
        dims = '"expert_ffn", "width"' if part == "down" else '"width", "expert_ffn"'
        return f'{part}: {kind} = gguf("ffn_{part}_exps", hf={source}, shape=({dims}, "experts"))'

    def _whole_stacks(self, e: Experts, layer: str) -> list[str]:
        """The same of a checkpoint with one tensor for all experts, gate and up in one."""
        names = {x.tobytes(): n for n, x in self.saved.items() if x.ndim == 3}
        stored = [names.get(x.astype(np.float32).tobytes(), "") for x in e.weights]
        where = f"{layer}.{e.place}.".replace("..", ".")
        if not all(name.startswith(where) for name in stored):
            raise Missing(f"{layer}.{e.leaf}: experts that a checkpoint has in another form")
        both, down = (f'"{name.removeprefix(where)}"' for name in stored)
        width = self.whole.width
        turned = e.weights[0].shape[1] == width and e.weights[1].shape[2] == width
        axis, op = (-1, ", op=Transpose()") if turned else (-2, "")
        halves = '("expert_ffn", "expert_ffn")'
        parts = [f"Part({both}, {i}, {halves}, axis={axis})" for i in (0, 1)]
        lines = list[str]()
        for part, source in zip(("gate", "up", "down"), (*parts, down), strict=True):
            weight = f'weight: Tensor = gguf("weight", hf={source}{op})'
            self.classes.append(written(part.title(), "ExpertLinear", [weight]))
            lines.append(self._stack(part, '""', part.title()))
        return lines


def _transposed(call: Call) -> bool:
    return call.kind == "Conv1D"


def _grouped(total: int, blocks: int, parts: Sequence[int]) -> list[int]:
    """The rows of blocks that each have three parts: one part of all blocks, then the next."""
    size = total // (3 * blocks)
    return [
        (3 * block + part) * size + i
        for part in parts
        for block in range(blocks)
        for i in range(size)
    ]
