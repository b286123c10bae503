"""Faults of images: their tokens, tiles, pixels; the states that a projector reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.faults.rules.seeds import MODEL, Seed, calls, keyword, made, rule, seed, short
from tests.faults.source import Source


@rule("tokens of an image")
def image_tokens(source: Source) -> Iterator[Seed]:
    """Tokens around an image in another order, or left out."""
    for node in source.nodes(ast.List):
        if source.method_of(node) != "image_inputs" or len(node.elts) < 2:
            continue
        parts = [source.of(e) for e in node.elts]
        for i, part in enumerate(parts):
            if i + 1 < len(parts) and parts[i + 1] != part:
                swapped = [*parts[:i], parts[i + 1], part, *parts[i + 2 :]]
                yield seed(source, node, f"[{', '.join(swapped)}]", *MODEL)
            if not part.startswith("*"):
                yield seed(source, node, f"[{', '.join(parts[:i] + parts[i + 1 :])}]", *MODEL)
    for call in calls(source, "token"):
        if source.method_of(call) == "image_inputs" and "x_separator" in source.of(call):
            new = source.of(call).replace("x_separator", "y_separator")
            yield seed(source, call.args[0], new[6:].split(",")[0], *MODEL)
    for node in source.nodes(ast.IfExp):
        if source.of(node) == '"x" if i % columns else "y"':
            yield seed(source, node, '"y" if i % columns else "x"', *MODEL)
            yield seed(source, node, '"x" if i % rows else "y"', *MODEL)


@rule("tiles and patches")
def tiles(source: Source) -> Iterator[Seed]:
    """Tiles, patches or rows and columns in another order."""
    for call in calls(source, "permute|transpose|split_tiles"):
        parts = [source.of(a) for a in call.args]
        order = [i for i, p in enumerate(parts) if re.fullmatch(r"\d+|rows|columns", p)]
        if len(order) >= 2:
            i = order[-2]
            edits = [
                source.edit(call.args[i], parts[i + 1]),
                source.edit(call.args[i + 1], parts[i]),
            ]
            said = (
                f"{source.of(call.func).rpartition('.')[2]}({', '.join(parts)}), last two swapped"
            )
            yield made(source, call, edits, short(said), _tower(source, call))
    for node in source.nodes(ast.BinOp):
        text = source.of(node)
        other = {"at % h.side + 1": "at // h.side + 1", "at // h.side + 1": "at % h.side + 1"}
        if text in other:
            yield seed(source, node, other[text], "Attention", "Vision")
            yield seed(source, node, text.removesuffix(" + 1"), "Attention", "Vision")
    for call in calls(source, "concat"):
        assert isinstance(call.func, ast.Attribute)
        tower = source.path.endswith("vision.py") and len(call.args) == 2
        if tower and isinstance(call.args[1], ast.Constant):
            x, y, dim = (source.of(n) for n in (call.func.value, *call.args))
            yield seed(source, call, f"({y}).concat({x}, {dim})")
    for call in calls(source, "concatenate"):
        if isinstance(call.args[0], ast.List) and source.path.endswith("image.py"):
            parts = [source.of(e) for e in call.args[0].elts]
            yield seed(source, call.args[0], f"[{', '.join(parts[::-1])}]", "preprocess")
    for node in source.nodes(ast.Tuple):
        pair = [source.of(e) for e in node.elts]
        if pair in (["rows", "columns"], ["columns", "rows"]) and isinstance(node.ctx, ast.Load):
            yield seed(source, node, f"({pair[1]}, {pair[0]})", *_tower(source, node))


def _tower(source: Source, node: ast.AST) -> tuple[str, ...]:
    """The class around, or the pixels that the model makes of a picture."""
    pixels = source.path.endswith("image.py") or source.method_of(node) == "preprocess"
    return ("preprocess",) if pixels else (source.class_of(node), "Vision")


@rule("pixels")
def pixels(source: Source) -> Iterator[Seed]:
    """Pixels of other values: mean and deviation, the frame, the filling."""
    for call in calls(source, "normalize"):
        if len(call.args) >= 3:
            mean, deviation = call.args[1:3]
            yield seed(source, mean, _halved(source.of(mean)), "preprocess")
            yield seed(source, deviation, _halved(source.of(deviation)), "preprocess")
    # Processors of the others drop what is transparent, and are recorded without any.
    filled = source.path.split("/")[0] in ("gemma3", "llama4", "mllama")
    for call in calls(source, "composite") if filled else ():
        yield seed(source, call, f'{source.of(call.args[0])}.convert("RGB")', "preprocess")
    for call in calls(source, "fit"):
        given = keyword(call, "single")
        if given is not None:
            yield seed(source, given.value, "False", "preprocess")
    for call in calls(source, "max"):
        if source.of(call) == "max(n, side)":
            yield seed(source, call, "n", "preprocess")


def _halved(text: str) -> str:
    return f"{text} / 2" if text[0].isdigit() else f"[m / 2 for m in {text}]"


@rule("end of a state")
def state_end(source: Source) -> Iterator[Seed]:
    """A state taken from the wrong end, or one step too late: of a recurrent layer, or of those
    that a projector reads."""
    for function in source.nodes(ast.FunctionDef):
        for call in calls(source, "put", function):
            kept = list(calls(source, "slice", call))
            if source.of(call.func) == "part.put" and kept:
                dim, start, end = (source.of(a) for a in kept[0].args[:3])
                new = f"slice({dim}, 0, ({end}) - ({start}))"
                at = source.of(kept[0].func)[: -len("slice")]
                yield seed(source, kept[0], f"{at}{new}", source.class_of(call))
                new = f"slice({dim}, ({start}) - 1, ({end}) - 1)"
                yield seed(source, kept[0], f"{at}{new}", source.class_of(call))
    for node in source.nodes(ast.For):
        body = node.body
        if len(body) == 2 and "append(x)" in source.of(body[0]):
            edits = [source.edit(a, source.of(b)) for a, b in (body, body[::-1])]
            yield made(source, node, edits, "the states that leave layers", ("Vision", "projector"))
