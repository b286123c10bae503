"""Files of Python, and their lines of code: docstrings, comments, blank lines and imports are
free."""

from __future__ import annotations

import ast
import io
import os
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

_FREE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Long:
    """A function or file with its number of lines, docstrings and blank ones included."""

    name: str
    lines: int

    def __str__(self) -> str:
        return f"{self.name} ({self.lines})"


@dataclass
class Source:
    """A file.

    Attributes:
        name: its path below the repository's root.
        module: the parts of its dotted name; those of the package for an `__init__.py`.
    """

    name: str
    module: tuple[str, ...]
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes of the syntax tree."""
        return list(ast.walk(ast.parse(self.text, self.name)))

    @property
    def is_package(self) -> bool:
        """Whether it is an `__init__.py`."""
        return self.name.endswith("__init__.py")

    @cached_property
    def lines(self) -> list[str]:
        """All lines."""
        return self.text.splitlines()

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        """The tokens, comments and line ends included."""
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def code(self) -> set[int]:
        """The numbers of the lines of code: those with a token that is not free."""
        numbers = self._written
        for node in self.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)) or documents(node):
                numbers.difference_update(_lines(node))
        return numbers

    @property
    def _written(self) -> set[int]:
        """The numbers of the lines that are neither blank nor comments alone. Only files with
        texts that have such lines themselves need to be read by tokens, which takes long."""
        plain = {
            number
            for number, line in enumerate(self.lines, 1)
            if (text := line.strip()) and not text.startswith("#")
        }
        docstrings = {id(node.value) for node in self.nodes if documents(node)}
        texts = (node for node in self.nodes if _is_text(node) and id(node) not in docstrings)
        if all(plain.issuperset(_lines(text)) for text in texts):
            return plain
        numbers = set[int]()
        for token in self.tokens:
            if token.type not in _FREE:
                numbers.update(range(token.start[0], token.end[0] + 1))
        return numbers

    def code_within(self, node: ast.stmt) -> int:
        """The lines of code of a function or class, without its decorators."""
        return len(self.code.intersection(_lines(node)))

    def functions(self) -> Iterator[Long]:
        """The functions at any depth, from `def` to the end."""
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield Long(f"{self.name}:{node.lineno} {node.name}", len(_lines(node)))

    def uses(self, words: Iterable[str]) -> dict[str, int]:
        """How often each word occurs as an identifier."""
        counts = dict.fromkeys(words, 0)
        for token in self.tokens:
            if token.type == tokenize.NAME and token.string in counts:
                counts[token.string] += 1
        return counts


def documents(node: object) -> TypeGuard[ast.Expr]:
    """Whether a node of a syntax tree is a text that stands alone: a docstring, or what documents
    the attribute before it."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_text(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether a node is a text within an expression."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes)) and node.lineno != node.end_lineno
    return isinstance(node, ast.JoinedStr)


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def read(root: Path, folder: str, module: str) -> list[Source]:
    """The files of Python below a folder of the repository; links to other folders are left out.

    Args:
        module: the dotted name of the folder when it is imported.
    """
    sources = []
    for top, folders, files in os.walk(root / folder):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for path in (Path(top, file) for file in sorted(files) if file.endswith(".py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            dotted = (*module.split("."), *(part for part in parts if part != "__init__"))
            name = path.relative_to(root).as_posix()
            sources.append(Source(name, dotted, path.read_text("utf-8")))
    return sources
