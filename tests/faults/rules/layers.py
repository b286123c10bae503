"""Faults of layers: residuals, norms, gates; of what stands before and behind them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from tests.faults.rules.seeds import (
    MODEL,
    NORMS,
    Seed,
    attributes,
    calls,
    fields,
    forgotten,
    keyword,
    made,
    own_calls,
    rule,
    seed,
    short,
)
from tests.faults.source import Edit, Source


@rule("residual")
def residual(source: Source) -> Iterator[Seed]:
    """A summand left out, or taken twice, where a layer adds what a block has computed."""
    for node in source.nodes(ast.BinOp):
        left, right = source.of(node.left), source.of(node.right)
        if not (isinstance(node.op, ast.Add) and _layer(source, node)):
            continue
        for new in (right, f"({left} + {source.of(node)})"):
            yield seed(source, node, new, source.class_of(node), "attn_norm", "norm")
        yield seed(source, node, left, more="attn ffn")


def _layer(source: Source, node: ast.AST) -> bool:
    return source.class_of(node).endswith("Layer") and source.method_of(node) == "forward"


@rule("summand")
def summand(source: Source) -> Iterator[Seed]:
    """A summand left out elsewhere: positions, types, shared experts."""
    for node in source.nodes(ast.BinOp):
        inside = source.method_of(node) == "forward" and not _layer(source, node)
        numbers = ("self" in source.of(node), isinstance(node.op, ast.Add))
        if inside and all(numbers):
            both = (node.left, node.right)
            for kept, dropped in (both, both[::-1]):
                if "self." in source.of(dropped):
                    names = " ".join(re.findall(r"self\.(\w+)", source.of(dropped)))
                    yield seed(source, node, source.of(kept), more=names)
        encodes = source.method_of(node) in ("encode", "hidden")
        if encodes and all(numbers) and "places" in source.of(node.right):
            yield seed(source, node, source.of(node.left), more="embed embed_norm layers")


@rule("norm")
def norm(source: Source) -> Iterator[Seed]:
    """A norm left out."""
    for call in own_calls(source, r"\w*norm\w*"):
        yield seed(source, call, source.of(call.args[0]))


@rule("norm behind")
def norm_behind(source: Source) -> Iterator[Seed]:
    """A norm behind a block instead of before it, or the other way round."""
    for call in own_calls(source, r"\w+"):
        if not call.args or not isinstance(first := call.args[0], ast.Call) or not first.args:
            continue
        outer, inner = source.of(call.func), source.of(first.func)
        if inner.startswith("self.") and ("norm" in outer) != ("norm" in inner):
            x, *others = (source.of(a) for a in first.args)
            rest = [source.of(a) for a in call.args[1:]]
            once = f"{outer}({', '.join([x, *rest])})"
            yield seed(source, call, f"{inner}({', '.join([once, *others])})")


@rule("swapped norms")
def swapped_norms(source: Source) -> Iterator[Seed]:
    """Two norms of a forward in each other's place."""
    for name, function in _forwards(source):
        used = list(own_calls_in(source, function, r"\w*norm\w*"))
        for one, other in pairwise(used):
            a, b = source.of(one.func), source.of(other.func)
            if a != b:
                edits = [source.edit(one.func, b), source.edit(other.func, a)]
                blames = (name, a[5:], b[5:])
                yield made(source, one, edits, f"{a} ↔ {b}", blames)


def _forwards(source: Source) -> Iterator[tuple[str, ast.FunctionDef]]:
    for function in source.nodes(ast.FunctionDef):
        if source.class_of(function) and function.name == "forward":
            yield source.class_of(function), function


def own_calls_in(source: Source, inside: ast.AST, pattern: str) -> Iterator[ast.Call]:
    for node in source.nodes(ast.Call, inside):
        if re.fullmatch(rf"self\.(?:{pattern})", source.of(node.func)):
            yield node


@rule("swapped names")
def swapped_names(source: Source) -> Iterator[Seed]:
    """Two fields of a class with each other's name in checkpoints."""
    for cls in source.nodes(ast.ClassDef):
        own = [f for f in fields(source) if f[1] in cls.body]
        for (one, node, call), (other, second, call_2) in pairwise(own):
            names = [_hf(source, c) for c in (call, call_2)]
            kinds = {source.of(n.annotation) for n in (node, second)}
            if None not in names and len(kinds) == 1 and not cls.name.endswith("Config"):
                a, b = (n for n in names if n is not None)
                edits = [source.edit(a, source.of(b)), source.edit(b, source.of(a))]
                said = f"{short(source.of(a))} ↔ {short(source.of(b))}"
                yield made(source, node, edits, said, (one, other, cls.name))


def _hf(source: Source, call: ast.Call) -> ast.expr | None:
    """The name of a field in checkpoints."""
    given = keyword(call, "hf")
    if given is not None:
        return given.value if isinstance(given.value, ast.Constant) else None
    helper = source.of(call.func) in ("_norm", "_experts", "_table", "_mm")
    return call.args[1] if helper and len(call.args) > 1 else None


@rule("epsilon")
def epsilon(source: Source) -> Iterator[Seed]:
    """Another epsilon in one norm, or the default instead of the config's."""
    for call in own_calls(source, r"\w*norm\w*"):
        if source.class_of(call) == "HeadNorm":
            continue
        if len(call.args) > 1:
            yield seed(source, call.args[1], f"10 * {source.of(call.args[1])}", *_called(call))
        elif "head_norm" not in source.of(call.func):
            new = f"{source.of(call)[:-1]}, eps=1e-3)"
            yield seed(source, call, new, *_called(call))
    for node in attributes(source, "eps", "forward"):
        yield seed(source, node, "1e-3", source.class_of(node), "q_norm", "k_norm")
    for node in source.nodes(ast.Assign):
        if "EPS" in source.of(node.targets[0]):
            yield seed(source, node.value, "1e-3", "pre_norm", "post_norm")
    yield from forgotten(source, r"\w*eps", *NORMS, "attn", "norm", "attn_norm")


def _called(call: ast.Call) -> tuple[str, ...]:
    assert isinstance(call.func, ast.Attribute)
    return (call.func.attr,)


@rule("norm behind rope")
def norm_behind_rope(source: Source) -> Iterator[Seed]:
    """Norms of queries and keys after the rotation instead of before."""
    for cls in source.nodes(ast.ClassDef):
        own = {name for name, node, _ in fields(source) if node in cls.body}
        rotated = list(calls(source, "rotate", cls))
        for name in ("q", "k"):
            inner = list(own_calls_in(source, cls, f"{name}_norm"))
            turned = [c for c in rotated if source.of(c.args[0]) == name]
            given = source.of(inner[0].args[0]) if inner and f"{name}_norm" in own else ""
            if turned and (given == name or "reshape" in given):
                edits = [
                    source.edit(inner[0], given),
                    source.edit(turned[0], f"self.{name}_norm({source.of(turned[0])})"),
                ]
                blames = (cls.name, f"{name}_norm")
                yield made(source, inner[0], edits, f"{name}_norm behind rotate", blames)


@rule("rows to keep")
def rows_to_keep(source: Source) -> Iterator[Seed]:
    """All rows kept in the last layer, where those without a result are dropped."""
    for call in calls(source, "keep_rows"):
        yield seed(source, call.args[0], "None", source.class_of(call), *MODEL)


@rule("gate of a layer")
def layer_gate(source: Source) -> Iterator[Seed]:
    """A gate left out, or the other one."""
    for node in source.nodes(ast.BinOp):
        text = source.of(node)
        gated = isinstance(node.op, ast.Mult) and re.search(r"self\.\w*gate\b", text)
        if gated and "self" not in source.of(node.left):
            yield seed(source, node, source.of(node.left), source.class_of(node))
    for node in attributes(source, r"(?:attn|ffn)_gate", "forward"):
        other = {"attn_gate": "ffn_gate", "ffn_gate": "attn_gate"}[node.attr]
        yield seed(source, node, f"self.{other}", source.class_of(node))


@rule("head")
def head(source: Source) -> Iterator[Seed]:
    """A head that is never tied, always tied, or named as the embedding."""
    for name, _, call in fields(source, "gguf"):
        if name != "head":
            continue
        if len(call.args) > 1:
            tied = Edit(source.span(call.args[0])[1], source.span(call.args[1])[1], "")
            yield made(source, call, [tied], "no alternate of the head", ("head", ""))
            always = [source.edit(a, '"token_embd"') for a in call.args[:1]]
            always.append(Edit(source.span(call.args[0])[1], source.span(call.args[1])[1], ""))
            given = keyword(call, "hf")
            if given is not None and isinstance(given.value, ast.Constant):
                always.append(source.edit(given.value, '"model.embed_tokens"'))
            yield made(source, call, always, "the embedding for the head", ("head", ""))


@rule("scale of embeddings")
def embedding_scale(source: Source) -> Iterator[Seed]:
    """No scale of embeddings, a rounded one, or one where there is none."""
    scaled = False
    for call in calls(source, "scale"):
        text = source.of(call)
        if "embed" in text and "width" in text:
            scaled = True
            assert isinstance(call.func, ast.Attribute)
            before = source.of(call.func.value)
            yield seed(source, call, before, "embed")
            yield seed(
                source, call.args[0], f"float(round({source.of(call.args[0])} + 0.3))", "embed"
            )
            factor = f"1.001 * {source.of(call.args[0])}"
            yield seed(source, call.args[0], factor, "embed")
    for call in own_calls(source, "embed|tokens"):
        if not scaled and call.args:
            yield seed(
                source, call, f"{source.of(call)}.scale(self.config.width**0.5)", more="norm"
            )
