"""Faults as rules make them, and ways to find the places."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tests.faults.source import Edit, Source

N = TypeVar("N", bound=ast.AST)


@dataclass(frozen=True)
class Seed:
    """A fault in a file.

    Attributes:
        node: where it is.
        edits: make it.
        said: the change in short.
        blames: fields and classes one of which `diff` must name; "" is the whole model.
    """

    node: ast.AST
    edits: tuple[Edit, ...]
    said: str
    blames: frozenset[str]


Rule = Callable[[Source], Iterator[Seed]]
RULES: dict[str, Rule] = {}

# The classes and fields in which a fault of the config, or of caches(), shows.
ATTENTION = ("Attention", "VisionAttention", "CrossAttention")
FEED_FORWARD = ("GatedMLP", "FeedForward", "Experts", "MLP", "ffn")
NORMS = ("RMSNorm", "LayerNorm", "HeadNorm")
MODEL = ("",)


def rule(name: str) -> Callable[[Rule], Rule]:
    """Registers a rule by its name."""

    def enter(found: Rule) -> Rule:
        RULES[name] = found
        return found

    return enter


def seed(source: Source, node: ast.AST, new: str, *blames: str, more: str = "") -> Seed:
    """A node replaced by a text. Blamed are the class around it and the modules that its text
    names, unless `blames` says others; `more` are further ones."""
    edit = source.edit(node, new)
    return made(source, node, [edit], f"{short(source.of(node))} → {short(new)}", blames, more)


def made(
    source: Source,
    node: ast.AST,
    edits: list[Edit],
    said: str,
    blames: tuple[str, ...] = (),
    more: str = "",
) -> Seed:
    """A fault of several edits."""
    named = blames or (source.class_of(node), *_members(source.of(node)), *more.split())
    return Seed(node, tuple(edits), said, frozenset(named))


def _members(text: str) -> list[str]:
    return re.findall(r"self\.(\w+)\(", text)


def short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 60 else f"{text[:28]} … {text[-28:]}"


# places


def calls(source: Source, name: str, inside: ast.AST | None = None) -> Iterator[ast.Call]:
    """Calls of a function or a method by the last part of its name, a pattern."""
    for node in source.nodes(ast.Call, inside):
        last = source.of(node.func).rpartition(".")[2]
        if re.fullmatch(name, last):
            yield node


def own_calls(source: Source, pattern: str) -> Iterator[ast.Call]:
    """Calls `self.NAME(…)` of modules."""
    for node in source.nodes(ast.Call):
        if re.fullmatch(rf"self\.(?:{pattern})", source.of(node.func)):
            yield node


def fields(source: Source, call: str = "") -> Iterator[tuple[str, ast.AnnAssign, ast.Call]]:
    """Fields that a call describes, as `q: Linear = gguf(…)`: their name, their node, the call."""
    for node in source.nodes(ast.AnnAssign):
        inside = source.class_of(node) and isinstance(node.target, ast.Name)
        if inside and isinstance(node.value, ast.Call):
            called = source.of(node.value.func)
            if call in ("", called):
                yield source.of(node.target), node, node.value


def keys(source: Source, pattern: str) -> Iterator[tuple[str, ast.Call]]:
    """Hyperparameters by name."""
    for name, node, call in fields(source):
        if source.class_of(node).endswith("Config") and re.fullmatch(pattern, name):
            yield name, call


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


def forgotten(source: Source, pattern: str, *blames: str) -> Iterator[Seed]:
    """Hyperparameters of which config.json's key is forgotten, so that the default holds."""
    for _, call in keys(source, pattern):
        given = keyword(call, "hf")
        if given is not None and keyword(call, "default") is not None:
            yield seed(source, given, "hf=lambda _: None", *blames)
        elif source.of(call.func) == "_vision":
            yield seed(source, call.args[1], '"forgotten"', *blames)


def attributes(source: Source, pattern: str, method: str = ".*") -> Iterator[ast.Attribute]:
    """Attributes that are read, as `h.window`."""
    for node in source.nodes(ast.Attribute):
        read = isinstance(node.ctx, ast.Load) and re.fullmatch(pattern, node.attr)
        if read and re.fullmatch(method, source.method_of(node)):
            yield node
