"""Model files as text and tree: spelled out, then changed in one place.

A model file leaves the usual blocks to `ggmodel.nn`. Spelled out, they stand in the file itself, as
in that of an author who writes every block: then one rule finds the residuals, norms, activations
and heads of all architectures.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from ggmodel import nn

MODELS = Path(__file__).parents[2] / "models"
_FUTURE = "from __future__ import annotations\n"
# For blocks that are spelled out, and for what rules write.
_NAMES = """
from dataclasses import replace
from typing import Any
from ggmodel import Context, DType, Module, Tensor, gguf, kv, nn
from ggmodel.ml import RopeType
from ggmodel.model import Batch, LayerMemory, PermuteRope, Transpose
from ggmodel.nn import *
from ggmodel.nn.decoder import scaled
from ggmodel.nn.encoder import BODIES, _WORDS, segments
from ggmodel.nn.sandwich import _norm
"""
_BLOCKS = (nn.PreNormLayer, nn.GatedExperts, nn.Decoder, nn.Attention, nn.PermutedAttention)
_BLOCKS += nn.SandwichLayer, nn.PerLayerEmbedding, nn.PerLayerInputs
_BLOCKS += nn.ConformerFeedForward, nn.ConformerConv, nn.MixerLayer, nn.PlainDecoder
_BLOCKS += nn.EncoderText, nn.Encoder
# Blocks that fields name → the name of the class that is written out.
_NAMED = {
    nn.Attention: "Attention",
    nn.PermutedAttention: "Attention",
    nn.GatedMLP: "GatedMLP",
    nn.PerLayerEmbedding: "PerLayer",
    nn.PerLayerInputs: "PerLayerInputs",
    nn.ConformerFeedForward: "ConformerFeedForward",
    nn.ConformerConv: "ConformerConv",
}
# Methods beside fields; the rest is inherited.
_METHODS = ("forward", "embedded", "hidden", "project", "attend")

N = TypeVar("N", bound=ast.AST)


@dataclass(frozen=True)
class Edit:
    """A piece of a text, from one offset to another, and what stands there instead."""

    start: int
    end: int
    new: str


class Source:
    """A Python file with its tree.

    Attributes:
        path: of the file, below `models/`.
    """

    def __init__(self, path: str, text: str):
        self.path, self.text, self.tree = path, text, ast.parse(text)
        self._rows = text.splitlines(keepends=True)
        self._lines = [0, *accumulate(map(len, self._rows))]

    @cached_property
    def _around(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def offset(self, line: int, column: int) -> int:
        """The offset of a node's line and column, which counts bytes."""
        row = self._rows[line - 1]
        before = column if row.isascii() else len(row.encode()[:column].decode())
        return self._lines[line - 1] + before

    def span(self, node: ast.AST) -> tuple[int, int]:
        """From where to where the text of a node goes."""
        at = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self.offset(*at[:2]), self.offset(*at[2:])

    def of(self, node: ast.AST) -> str:
        """The text of a node."""
        return self.text[slice(*self.span(node))]

    def edit(self, node: ast.AST, new: str) -> Edit:
        """Another text in place of a node."""
        return Edit(*self.span(node), new)

    def within(self, node: ast.AST, kind: type[N]) -> N | None:
        """The nearest node of a kind around another."""
        found = self._around.get(node)
        while found is not None and not isinstance(found, kind):
            found = self._around.get(found)
        return found

    def class_of(self, node: ast.AST) -> str:
        """The name of the class around a node, or ""."""
        found = self.within(node, ast.ClassDef)
        return "" if found is None else found.name

    def method_of(self, node: ast.AST) -> str:
        """The name of the function around a node, or ""."""
        found = self.within(node, ast.FunctionDef)
        return "" if found is None else found.name

    def nodes(self, kind: type[N], inside: ast.AST | None = None) -> Iterator[N]:
        """All nodes of a kind, in the order of the text."""
        every = self._nodes if inside is None else ast.walk(inside)
        found = [n for n in every if isinstance(n, kind)]
        return iter(sorted(found, key=self.span))

    def changed(self, *edits: Edit) -> str:
        """The text after edits that do not overlap."""
        text, last = self.text, len(self.text)
        for edit in sorted(edits, key=lambda e: (e.start, e.end), reverse=True):
            assert edit.end <= last, "edits overlap"
            text, last = text[: edit.start] + edit.new + text[edit.end :], edit.start
        return text


def files() -> list[Path]:
    """The files of architectures."""
    return sorted(p for p in MODELS.rglob("*.py") if p.name != "__init__.py")


def spelled(path: Path) -> Source:
    """A model file with the blocks of `ggmodel.nn` written out."""
    text = path.read_text("utf-8")
    source = Source(path.relative_to(MODELS).as_posix(), text)
    edits = [
        Edit(end, end, more)
        for node in source.nodes(ast.ClassDef)
        for end in [source.span(node)[1]]
        if (more := _missing(source, node))
    ]
    for block, name in _NAMED.items():
        named = f"nn.{block.__name__}"
        bases = {base for node in source.nodes(ast.ClassDef) for base in node.bases}
        mentions = [n for n in source.nodes(ast.Attribute) if source.of(n) == named]
        mentions = [n for n in mentions if n not in bases]
        edits += [source.edit(n, name) for n in mentions]
        if mentions or any(re.search(rf"\b{block.__name__}\b", e.new) for e in edits):
            first = source.span(next(source.nodes(ast.ClassDef)))[0]
            start = text.rfind("\n@", 0, first) + 1 or first
            start = start if text[start:first].count("\n") == 1 else first
            skip = ("gate", "up", "down") if block is nn.GatedMLP else ()
            members = _members(block, skip)
            edits.append(Edit(start, start, f"class {name}({named}):{members}\n\n\n"))
    if _FUTURE in text:  # others only name what is elsewhere
        at = text.index(_FUTURE) + len(_FUTURE)
        edits.append(Edit(at, at, _NAMES))
    return Source(source.path, source.changed(*edits))


def _missing(source: Source, node: ast.ClassDef) -> str:
    """The members of a block that a class inherits."""
    bases = {source.of(base) for base in node.bases}
    block = next((b for b in _BLOCKS if f"nn.{b.__name__}" in bases), None)
    if block is None:
        return ""
    own = {source.of(n.target) for n in node.body if isinstance(n, ast.AnnAssign)}
    own |= {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    # The blocks' other fields are annotated alone, for subclasses.
    return _members(block, skip=tuple(own | {"attn", "layers"}))


@cache
def _tree(cls: type) -> ast.ClassDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return tree


def _members(block: type, skip: tuple[str, ...]) -> str:
    """The fields with a tensor and the forward of a class, as the text behind a class's own."""
    fields, methods = dict[str, str](), dict[str, str]()
    for cls in reversed(block.__mro__):
        if not cls.__module__.startswith(nn.__name__):
            continue
        for node in _tree(cls).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if isinstance(node.value, ast.Call) and node.target.id not in skip:
                    fields[node.target.id] = ast.unparse(node)
            elif isinstance(node, ast.FunctionDef) and node.name in {*_METHODS} - {*skip}:
                methods[node.name] = ast.unparse(node)
    lines = [*fields.values(), *(f"\n{method}" for method in methods.values())]
    return "\n" + textwrap.indent("\n".join(lines), "    ") if lines else ""
