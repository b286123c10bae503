"""Faults of feed-forward blocks and experts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.faults.rules.seeds import (
    FEED_FORWARD,
    MODEL,
    Seed,
    attributes,
    calls,
    forgotten,
    rule,
    seed,
)
from tests.faults.source import Source


@rule("activation")
def activation(source: Source) -> Iterator[Seed]:
    """Another activation."""
    for call in calls(source, "activate"):
        for new in ('"relu"', '"gelu"'):
            yield seed(source, call.args[0], new, source.class_of(call))
    others = {"gelu": "gelu_erf", "gelu_erf": "gelu", "silu": "gelu", "tanh": "sigmoid"}
    for call in calls(source, "gelu|gelu_erf|silu|tanh|sigmoid"):
        assert isinstance(call.func, ast.Attribute)
        before = source.of(call.func.value)
        new = {**others, "sigmoid": "softmax"}[call.func.attr]
        said = source.of(call)[len(before) + 1 + len(call.func.attr) :]
        inside = () if "cap" not in source.of(call) else MODEL
        yield seed(source, call, f"{before}.{new}{said}", *inside)
    for call in calls(source, "silu_alpha_limit"):
        alpha, limit = call.args[1:3]
        yield seed(source, alpha, "1.0", source.class_of(call))
        yield seed(source, limit, "1e9", source.class_of(call))
    yield from forgotten(source, "activation", *FEED_FORWARD)


@rule("gate and up")
def gate_and_up(source: Source) -> Iterator[Seed]:
    """Gate and up in each other's place."""
    for call in calls(source, "activate|silu|silu_alpha_limit"):
        text = source.of(call)
        if re.search(r"\bgate\b", text) and re.search(r"\bup\b", text):
            new = re.sub(r"\b(gate|up)\b", lambda m: {"gate": "up", "up": "gate"}[m[0]], text)
            yield seed(source, call, new, source.class_of(call))


@rule("experts")
def experts(source: Source) -> Iterator[Seed]:
    """One expert more or less, other weights of theirs, or none."""
    for node in attributes(source, "experts_used", "forward"):
        for new in (f"{source.of(node)} + 1", f"{source.of(node)} - 1"):
            yield seed(source, node, new, source.class_of(node))
    for call in calls(source, "choose_experts"):
        if len(call.args) > 2:
            new = f"not {source.of(call.args[2])}"
            yield seed(source, call.args[2], new, source.class_of(call))
        else:
            yield seed(source, call, f"{source.of(call)[:-1]}, False)", source.class_of(call))
    for node in source.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mult) and source.of(node.right) == "weights":
            yield seed(source, node, source.of(node.left), source.class_of(node))
    yield from forgotten(source, "normalize", "Experts", "ffn")
