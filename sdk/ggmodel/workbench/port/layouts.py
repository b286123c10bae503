"""The wiring of a layer as one of nn's layers, or as a forward of its own; texts of methods."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .algebra import Sines
from .attention import Missing
from .blocks import Layer, Wiring

Names = dict[str, tuple[str, ...]]
GGUF = {
    "attn_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "attn_post_norm": "post_attention_norm",
    "ffn_post_norm": "post_ffw_norm",
    "norm": "layer_output_norm",
}
ORDER = (
    *("attn_norm", "attn", "attn_post_norm", "ffn_norm", "ffn", "ffn_post_norm", "norm"),
    "second_ffn",
)
# Each layer's names in checkpoints, and the kind of its norms, and whether they add one.
_PRE: Names = {
    "attn": ("self_attn",),
    "ffn": ("mlp",),
    "attn_norm": ("input_layernorm",),
    "ffn_norm": ("post_attention_layernorm",),
}
_LAYER_NORM: Names = {
    "attn": ("self_attn", "attention", "attn", "self_attention"),
    "ffn": ("mlp",),
    "attn_norm": ("input_layernorm", "ln_1"),
    "ffn_norm": ("post_attention_layernorm", "ln_2"),
}
_SANDWICH: Names = {
    "attn": ("self_attn",),
    "ffn": ("mlp",),
    "attn_norm": ("input_layernorm",),
    "attn_post_norm": ("post_attention_layernorm",),
    "ffn_norm": ("pre_feedforward_layernorm",),
    "ffn_post_norm": ("post_feedforward_layernorm",),
}
_POST: Names = {
    "attn": ("self_attn",),
    "ffn": ("mlp",),
    "attn_post_norm": ("post_attention_layernorm",),
    "ffn_post_norm": ("post_feedforward_layernorm",),
}
LAYERS: dict[str, tuple[Names, str, bool]] = {
    "nn.PreNormLayer": (_PRE, "RMSNorm", False),
    "nn.LayerNormLayer": (_LAYER_NORM, "LayerNorm", False),
    "nn.SandwichLayer": (_SANDWICH, "RMSNorm", True),
}
_WIRED = {
    "nn.PreNormLayer": {
        "attn_norm": {"x"},
        "attn": {"attn_norm"},
        "ffn_norm": {"attn", "x"},
        "ffn": {"ffn_norm"},
        "": {"attn", "ffn", "x"},
    },
    "nn.SandwichLayer": {
        "attn_norm": {"x"},
        "attn": {"attn_norm"},
        "attn_post_norm": {"attn"},
        "ffn_norm": {"attn_post_norm", "x"},
        "ffn": {"ffn_norm"},
        "ffn_post_norm": {"ffn"},
        "": {"attn_post_norm", "ffn_post_norm", "x"},
    },
}


def named_norms(layer: Layer) -> dict[str, str]:
    """The norms between the parts of a layer → their fields."""
    wiring, names = dict(layer.wiring), dict[str, str]()
    for part, factors in layer.wiring:
        if part in ("attn", "ffn", "second_ffn", ""):
            continue
        if (first := part.partition("#")[0]) in names:
            names[part] = _again(layer, first, part, names)
            continue
        readers = [p for p, f in layer.wiring if part in f]
        if wiring["attn"] == {part: 1.0}:
            field = "attn_norm"
        elif readers == ["ffn"]:
            field = "ffn_norm"
        elif "ffn" in factors:
            field = "ffn_post_norm" if [*factors] == ["ffn"] else "norm"
        else:
            field = "attn_post_norm" if "attn" in factors else "ffn_norm"
        if field in names.values():
            raise Missing(f"{layer.path}.{part}: a further norm in the place of {field}")
        names[part] = field
    return names


def _again(layer: Layer, first: str, part: str, names: dict[str, str]) -> str:
    """The field of a norm that is called a second time; its first result is gone then."""
    at = [name for name, _ in layer.wiring].index(part)
    if any(first in factors for _, factors in layer.wiring[at + 1 :]):
        raise Missing(f"{layer.path}.{first}: a norm of which two results are read later")
    return names[first]


def parallel(wiring: Wiring) -> bool:
    """Whether both parts read what enters the layer, through a norm for both or one each."""
    read = dict(wiring)
    aside = [*read["ffn"]] == ["attn_norm"] and "ffn_norm" not in read
    each = [*read.get("ffn_norm", ())] == ["x"] and [*read["ffn"]] == ["ffn_norm"]
    begins = [*read.get("attn_norm", ())] == ["x"] and [*read["attn"]] == ["attn_norm"]
    return (aside or each) and begins and {*read[""]} == {"x", "attn", "ffn"}


def base_of(wiring: Wiring, layer_norms: bool) -> str:
    """The layer of nn with this wiring, or "Module"."""
    read = {part: {*factors} for part, factors in wiring}
    scaled = any(c != 1 for _, factors in wiring for c in factors.values())
    if parallel(wiring):
        return "Module" if scaled else "nn.LayerNormLayer"
    if read == _WIRED["nn.PreNormLayer"]:
        return "nn.LayerNormLayer" if layer_norms else "nn.PreNormLayer"
    if read == _WIRED["nn.SandwichLayer"] and not scaled:
        return "nn.SandwichLayer"
    return "Module"


def forward(wiring: Wiring) -> str:
    """The forward of a layer with a wiring of its own."""
    scaled = any(c != 1 for _, factors in wiring for c in factors.values())
    lines = ["share = self.config.residual_scale"] if scaled else []
    for i, (part, factors) in enumerate(wiring):
        value = " + ".join(n if c == 1 else f"{n}.scale(share)" for n, c in factors.items())
        if part == "":
            lines.append(f"return {value}")
            break
        more = ", batch, cache" if part == "attn" else ""
        lines.append(f"{part} = self.{part}({value}{more})")
        if part == "attn":
            later = {n for _, f in wiring[i + 1 :] for n in f}
            kept = [n for n in ("x", *(p for p, _ in wiring[: i + 1])) if n in later]
            comma = "" if len(kept) > 1 else ","
            lines.append(f"{', '.join(kept)}{comma} = nn.keep_rows(outputs, {', '.join(kept)})")
    body = "\n".join(f"        {line}" for line in lines)
    return f"{_LAYER_FORWARD}\n{body}"


def written(name: str, base: str, lines: Iterable[str], methods: Sequence[str] = ()) -> str:
    """A class as text."""
    fields = "\n".join(f"    {_wrapped(line)}" for line in lines)
    body = "\n\n".join(part for part in (fields, *methods) if part)
    return f"class {name}({base}):\n{body or '    pass'}"


def _wrapped(line: str) -> str:
    if len(line) <= 96 or "(" not in line or "\n" in line:
        return line
    head, _, inner = line[:-1].partition("(")
    if len(inner) > 92:
        # Commas within brackets stay.
        inner = re.sub(r", (?=\w+=)(?![^()]*\))", ",\n        ", inner) + ","
    return f"{head}(\n        {inner}\n    )"


def imports(body: str) -> str:
    """The imports that a file's text needs."""

    def used(names: str) -> str:
        return ", ".join(n for n in names.split() if re.search(rf"(?<![\w.\"]){n}\b", body))

    lines = ["from __future__ import annotations\n"]
    if used("Any"):
        lines.append("from typing import Any\n")
    if "np." in body:
        lines.append("import numpy as np\n")
    for module, names in (
        ("", "Module Tensor gguf kv nn register"),
        (".kvcache", "Causal Sliding"),
        (".ml", "Context DType RopeType"),
        (
            ".model",
            "AddConstant Batch HeadRows LastRows LayerMemory Part PartsOfHeads Stack Transpose",
        ),
        (".nn", "Embedding ExpertLinear LayerNorm Linear RMSNorm Rope"),
    ):
        if found := used(names):
            lines.append(f"from ggmodel{module} import {found}")
    return "\n".join(lines)


_LAYER_FORWARD = """\
    def forward(
        self, x: Tensor, batch: Batch, cache: LayerMemory, outputs: Tensor | None
    ) -> Tensor:"""
WIDE_NORMS = """\
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.config
        q = self.q_norm(self.q(x)).reshape(h.head_dim, h.heads, -1)
        k = self.k_norm(self.k(x)).reshape(h.head_dim, h.kv_heads, -1)
        return q, k, self.v(x).reshape(h.value_dim, h.kv_heads, -1)"""
FUSED_NORMS = """\
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x)
        return self.q_norm(q.contiguous()), self.k_norm(k.contiguous()), v"""
BACKWARDS = """\
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Pairs rotate backwards, which they do with their elements swapped.
        q, k, v = super().project(x)
        (a, b), (c, d) = (y.chunk(0, self.config.head_dim // 2) for y in (q, k))
        return b.concat(a, 0), d.concat(c, 0), v"""
SCORED = """\
    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # The bias is added to the scores, not to their shares.
        h, scores = self.config, self.router(x)
        ids = (scores + self.bias).top_k(h.experts_used)
        weights = scores.{share}().reshape(1, h.experts, -1).rows(ids)
        total = weights.reshape(h.experts_used, -1).sum_rows().reshape(1, 1, -1)
        weights = weights.div(total) if h.normalize else weights
        return ids, weights.scale(h.expert_scale)"""
NORMED_RESULT = """\
    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerMemory) -> Tensor:
        h = self.config
        y = nn.attention(q, k, v, cache, scale=h.scale, softcap=h.score_cap)
        return self.out(self.out_norm(y))"""
SWAPPED = """\
    def forward(self, x: Tensor) -> Tensor:
        up, gate = self.up(x).chunk(0, self.config.ffn)
        return self.down(nn.activate(self.activation, gate.contiguous(), up.contiguous()))"""
NORMED_GATE = """\
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(nn.activate(self.activation, self.gate(x), self.up(x))))"""
NORMED_MLP = """\
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(nn.activate(self.activation, self.up(x))))"""
NORMED_EXPERTS = """\
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))"""
HIDDEN = """\
    def hidden(self, ctx: Context, batch: Batch) -> Tensor:
        x = self.embedded(batch)
        for layer, cache, outputs in batch.through(self.layers):
            x = layer(x, batch, cache, outputs)
        return {value}"""
CONSTANT_NORM = '''\
class Constant{kind}({kind}):
    """Its epsilon is no hyperparameter."""

    def forward(self, x: Tensor, eps: float | None = None) -> Tensor:
        return super().forward(x, {eps})'''
PLAIN_NORM = '''\
class Norm(Module):
    """A norm without weights."""

    def forward(self, x: Tensor) -> Tensor:
        return x.{op}(eps=self.config.eps)'''


def sines(rule: Sines) -> str:
    """The function that computes a table of positions."""
    last = "half - 1" if rule.whole else "half"
    first = f" + {rule.first}" if rule.first else ""
    both = (
        "np.concatenate([np.sin(turns), np.cos(turns)], 1)"
        if rule.apart
        else "np.stack([np.sin(turns), np.cos(turns)], 2).reshape(h.context, h.width)"
    )
    return f'''\
def _positions(h: Any) -> np.ndarray:
    """Sines and cosines of positions, float32 [context, width]."""
    half = h.width // 2
    angles = 10000.0 ** (-np.arange(half) / ({last}))
    turns = np.outer(np.arange(h.context){first}, angles)
    return {both}.astype(np.float32)'''
