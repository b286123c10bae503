"""Faults of attention: its operands and weights, rope, windows, patterns of layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.faults.rules.seeds import (
    ATTENTION,
    MODEL,
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
from tests.faults.source import Source


@rule("scale")
def scale(source: Source) -> Iterator[Seed]:
    """Another scale of the scores."""
    for call in source.nodes(ast.Call):
        given = keyword(call, "scale")
        if given is not None and "attention" in source.of(call.func):
            for new in ("1.0", f"2 * ({source.of(given.value)})"):
                yield seed(source, given.value, new, source.class_of(call))
    for node in source.nodes(ast.Assign):
        if source.of(node.targets[0]) == "scale":
            yield seed(source, node.value, "1.0", source.class_of(node))
    yield from forgotten(source, "scale|tuning_scale|tuning_floor|tuned", *ATTENTION)


@rule("softcap")
def softcap(source: Source) -> Iterator[Seed]:
    """No cap of scores or logits, or another one."""
    for call in source.nodes(ast.Call):
        given = keyword(call, "softcap")
        if given is not None:
            yield seed(source, given.value, "0.0", source.class_of(call))
            yield seed(source, given.value, f"2 * {source.of(given.value)}", source.class_of(call))
    for call in calls(source, "softcap"):
        yield seed(source, call, source.of(call.args[0]), *MODEL)
        for factor in ("2", "0.5"):
            yield seed(source, call.args[1], f"{factor} * {source.of(call.args[1])}", *MODEL)
    yield from forgotten(source, "score_cap", *ATTENTION)
    yield from forgotten(source, "logit_cap|softcap", *MODEL)


@rule("operands of attention")
def operands(source: Source) -> Iterator[Seed]:
    """Keys for values, values for keys; sinks left out."""
    for call in calls(source, "attention"):
        yield seed(source, call.args[2], source.of(call.args[1]), source.class_of(call))
        sinks = keyword(call, "sinks")
        if sinks is not None:
            yield seed(source, sinks.value, "None", source.class_of(call), "sinks")
    for call in calls(source, "scaled_dot_product_attention"):
        if len(call.args) > 1:
            yield seed(source, call.args[1], source.of(call.args[0]), source.class_of(call))


@rule("bias")
def bias(source: Source) -> Iterator[Seed]:
    """The bias of a linear map left out, where checkpoints may have one."""
    linear = {
        (source.class_of(node), name)
        for name, node, _ in fields(source)
        if source.of(node.annotation) == "Linear"
    }
    for call in own_calls(source, r"\w+"):
        name = source.of(call.func)[5:]
        if len(call.args) == 1 and (source.class_of(call), name) in linear and name != "head":
            new = f"self.{name}.weight.mulmat({source.of(call.args[0])})"
            yield seed(source, call, new)


@rule("transposed")
def transposed(source: Source) -> Iterator[Seed]:
    """A square matrix transposed."""
    for name, node, call in fields(source, "gguf"):
        shape = keyword(call, "shape")
        if shape is None or keyword(call, "op") is not None or keyword(call, "hf") is None:
            continue
        widths = [str(getattr(e, "value", "")) for e in getattr(shape.value, "elts", [])]
        square = len(widths) == 2 and all(w.endswith("width") for w in widths)
        if square and source.of(node.annotation) == "Linear":
            new = f"op=Transpose(), {source.of(shape)}"
            yield seed(source, shape, new, name)


@rule("permutation")
def permutation(source: Source) -> Iterator[Seed]:
    """Rows of queries or keys not permuted, though rope needs it, or by another number of heads."""
    for name, _, call in fields(source, "gguf"):
        op = keyword(call, "op")
        if op is not None and "PermuteRope" in source.of(op):
            blames = (name, source.class_of(op))  # with another type of rope it is right
            yield seed(source, op, "op=None", *blames)
            other = {"heads": "kv_heads", "kv_heads": "heads"}
            heads = op.value.args[0].value  # type: ignore[attr-defined]
            if heads in other:  # a tower has one number of heads
                yield seed(source, op, f'op=PermuteRope("{other[heads]}")', *blames)


@rule("rope")
def rope(source: Source) -> Iterator[Seed]:
    """Another base, type, scale, width or magnitude of a rope; its factors left out."""
    for call in source.nodes(ast.Call):
        of = source.of(call.func)
        if not (of.endswith("rotary.rope") or of == "nn.Rope"):
            continue
        neox = "NEOX" in source.of(call)
        whole, tower = source.of(call), source.path.endswith("vision.py")
        blames = (source.class_of(call),) if tower else ATTENTION
        for change in (
            f"type=RopeType.{'NORM' if neox else 'NEOX'}",
            f"base=2 * ({whole}).base",
            f"scale=0.5 * ({whole}).scale",
            f"dims=({whole}).dims - 2",
            f"magnitude=1.1 * ({whole}).magnitude",
            "factors=None",
        ):
            if change == "factors=None" and of == "nn.Rope":
                continue
            edit = source.edit(call, f"replace({whole}, {change})")
            said = f"{short(whole)}, {change.replace(f'({whole})', 'its')}"
            yield made(source, call, [edit], said, blames)
    yield from forgotten(source, r"rope_base|local_base|rope_factor|rope_dims", *ATTENTION)
    yield from forgotten(source, "vit_rope_base|yarn_truncate|no_rope_interval", *ATTENTION)


@rule("rope of one side")
def rope_of_one_side(source: Source) -> Iterator[Seed]:
    """Queries or keys not rotated, or by positions that are one off."""
    for call in calls(source, "rotate|rope"):
        if source.of(call.func) not in ("cache.rotate", "rope") or len(call.args) < 2:
            continue
        inside = source.class_of(call)
        yield seed(source, call, source.of(call.args[0]), inside)
        if "positions" in source.of(call.args[1]):
            later = f"({source.of(call.args[1])}.cast(DType.F32) + batch.positions.cast(DType.F32))"
            yield seed(source, call.args[1], f"{later}.cast(DType.I32)", inside)


@rule("rope of the cache")
def rope_of_the_cache(source: Source) -> Iterator[Seed]:
    """Keys rotated as they should be, but a cache that moves them by another rope."""
    for call in calls(source, "rotate"):
        x, at = (source.of(a) for a in call.args)
        if source.of(call.func) == "cache.rotate":
            new = f"replace(cache.rope, base=2 * cache.rope.base)({x}, {at})"
            yield seed(source, call, new, source.class_of(call))
    for call in source.nodes(ast.Call):
        whole = source.of(call)
        if source.of(call.func) in ("Causal", "Chunked") and "rope" in whole:
            at = next(a for a in call.args if "rope" in source.of(a))
            yield seed(source, at, "None", *ATTENTION)


@rule("window")
def window(source: Source) -> Iterator[Seed]:
    """A window or chunk one longer, one shorter, or not read from the config."""
    for node in attributes(source, "window|chunk", "caches"):
        if isinstance(source.within(node, ast.Compare), ast.Compare):
            continue
        for new in (f"({source.of(node)} + 1)", f"({source.of(node)} - 1)"):
            yield seed(source, node, new, *ATTENTION)
    for node in source.nodes(ast.BinOp):
        if source.of(node) == "h.window // 2 + 1":
            yield seed(source, node, "h.window // 2", *ATTENTION)
            yield seed(source, node, "h.window // 2 + 2", *ATTENTION)
    yield from forgotten(source, "window|chunk", *ATTENTION)


@rule("layers of a pattern")
def pattern(source: Source) -> Iterator[Seed]:
    """Other layers are local, without rope, or attend to images."""
    for node in attributes(source, "local"):
        if source.method_of(node) in ("caches", "ropes"):
            yield seed(source, node, "[not near for near in h.local]", *ATTENTION)
            yield seed(source, node, "[*h.local[1:], h.local[0]]", *ATTENTION)
    for node in source.nodes(ast.BinOp):
        inside = source.method_of(node) in ("caches", "_pattern", "_no_rope_interval")
        if (inside and source.of(node) == "(i + 1)") or (source.of(node) == "i + 1" and inside):
            yield seed(source, node, "i", *ATTENTION)
    for node in source.nodes(ast.Compare):
        if source.of(node) == "i >= first":
            yield seed(source, node, "i > first", *ATTENTION)
            yield seed(source, node, "i < first", *ATTENTION)
    for node in source.nodes(ast.IfExp):
        if source.method_of(node) in ("caches", "ropes"):
            one, other = source.of(node.body), source.of(node.orelse)
            new = f"{other} if {source.of(node.test)} else {one}"
            yield seed(source, node, new, *ATTENTION)
    yield from forgotten(source, "pattern", *ATTENTION)
