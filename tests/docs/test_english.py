"""Sentences in documents, docstrings and comments open with a noun, not with a clause about it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT

FOLDERS = ("sdk", "models", "native", "benchmarks", "examples", "tools", "tests", "docs")
SUFFIXES = (".py", ".md", ".c")
OPENING = re.compile(r"(?:What|Whatever|Who|Whoever|Of|So many|Those that)\b")
# The beginning of a text, an item, an argument's description, a table's cell or a next sentence.
BEGIN = re.compile(
    r"^\s*(?:(?:[-*>#]+|\d+\.|\*{0,2}\w+(?:, \w+)*:)\s+)?|\|\s*|(?<=[.!?])[)\"*_`]*\s+"
)
ITEM = re.compile(r"\s*(?:[-*>|#]+ |\d+\. |\*{0,2}\w+(?:, \w+)*: )")

Lines = Iterator[tuple[int, str]]  # with the numbers of their first lines


def openings(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """The sentences of paragraphs that open otherwise than with a noun, and their lines."""
    for line, paragraph in _paragraphs(text, first):
        for begin in BEGIN.finditer(paragraph):
            rest = paragraph[begin.end() :].lstrip("([\"*_`'")
            if not OPENING.match(rest):
                continue
            sentence = re.split(r"(?<=[.!?])[)\"*_`]*(?:\s|$)", rest, maxsplit=1)[0]
            if not sentence.rstrip(')"*_`').endswith("?"):
                yield line + paragraph.count("\n", 0, begin.end()), sentence


def _paragraphs(text: str, first: int) -> Lines:
    """Text between blank lines; items, headings and rows of tables stand alone."""
    begin, held = first, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], first):
        if held and (not line.strip() or ITEM.match(line) or held[0].startswith("#")):
            yield begin, "\n".join(held)
            held = []
        if line.strip():
            begin = begin if held else number
            held.append(line)


def prose(path: Path) -> Lines:
    """The text of a document; the docstrings and comments of code."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        yield 1, re.sub(r"^```.*?^```", _blank, text, flags=re.M | re.S)
    elif path.suffix == ".c":
        for found in re.finditer(r"(?:^[ \t]*//.*\n)+|/\*.*?\*/|//.*", text, re.M | re.S):
            yield text.count("\n", 0, found.start()) + 1, re.sub(r"[/*]", " ", found[0])
    else:
        yield from _docstrings(text)
        yield from _comments(text)


def _blank(code: re.Match[str]) -> str:
    return "\n" * code[0].count("\n")


def _docstrings(text: str) -> Lines:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            statement = node.body[0]
            assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            yield statement.lineno, str(statement.value.value)


def _comments(text: str) -> Lines:
    """Comments, those on lines below each other together."""
    begin, held, after = 0, list[str](), -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        (line, _), alone = token.start, not token.line[: token.start[1]].strip()
        if held and not (alone and line == after):
            yield begin, "\n".join(held)
            held = []
        begin, after = (begin if held else line), (line + 1 if alone else -1)
        held.append(token.string.lstrip("#: "))
    if held:
        yield begin, "\n".join(held)


def _files() -> list[Path]:
    found = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*")]
    return sorted(p for p in [*found, *ROOT.glob("*.md")] if p.suffix in SUFFIXES)


def test_no_sentence_opens_with_a_clause():
    files = _files()
    assert len(files) > 500
    # Most files have none of these words anywhere, and need not be parsed.
    suspect = [path for path in files if OPENING.search(path.read_text("utf-8"))]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {sentence!r}"
        for path in suspect
        for first, text in prose(path)
        for line, sentence in openings(text, first)
    ]
    assert not found, "\n".join(["name the thing first:", *found])


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("What is\nread.", [1]),
        ("A file is\nread. What is left is\nnot.", [2]),
        ("Of a list: its items.", [1]),
        ("Args:\n    x: of a token.\n    y: What is left.", [3]),
        ("# Read\nWhat is left.", [2]),
        ("| name | What it is |", [1]),
        ("- Whatever is left.\n- Those that are left.\n\n* So many\ncells.", [1, 2, 4]),
        ("What is read? Nothing.", []),
        ("A row of cells, of what is read. The type of it.", []),
    ],
)
def test_openings_are_found(text: str, lines: list[int]):
    assert [line for line, _ in openings(text)] == lines


def test_comments_and_docstrings_are_read(tmp_path: Path):
    path = tmp_path / "part.py"
    path.write_text('"""Who."""\n\nx = 1  # Of a token\n# It is.\n# Whatever.\ny = "# What"\n')
    lines = [line for first, text in prose(path) for line, _ in openings(text, first)]
    assert lines == [1, 3, 5]
