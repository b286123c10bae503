"""Functions and classes that are equal but for their names and constants."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import combinations

from .source import Source, documents

SHORTEST = 6  # lines of code


@dataclass(frozen=True)
class Definition:
    """A function or class: where it stands, and its lines of code."""

    file: str
    line: int
    name: str
    lines: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name} ({self.lines})"


Pair = tuple[Definition, Definition]


def pairs(sources: list[Source]) -> list[Pair]:
    """The pairs with equal syntax trees after renaming, in order of their files and lines.

    Equal classes are a pair, and so are their methods.
    """
    alike: dict[str, list[Definition]] = {}
    for source in sources:
        for node in source.nodes:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = source.code_within(node)
                if lines >= SHORTEST:
                    definition = Definition(source.name, node.lineno, node.name, lines)
                    alike.setdefault(shape(node), []).append(definition)
    equal = [pair for group in alike.values() for pair in combinations(group, 2)]
    return sorted(equal, key=lambda pair: [(one.file, one.line) for one in pair])


def shape(node: ast.AST) -> str:
    """A syntax tree without docstrings, each name and constant replaced by a number in the order of
    first appearance."""
    numbers: dict[tuple[str, str], int] = {}

    def number(kind: str, value: object) -> str:
        return f"{kind}{numbers.setdefault((kind, repr(value)), len(numbers))}"

    def dump(value: object, kind: str = "name") -> str:
        if isinstance(value, ast.Constant):
            return number("constant", value.value)
        if isinstance(value, ast.AST):
            kind = "attribute" if isinstance(value, ast.Attribute) else "name"
            inner = [dump(getattr(value, f, None), kind) for f in value._fields if f != "ctx"]
            return f"{type(value).__name__}({','.join(inner)})"
        if isinstance(value, list):
            return f"[{','.join(dump(one) for one in value if not documents(one))}]"
        return number(kind, value) if isinstance(value, str) else repr(value)

    return dump(node)
