"""Model files stay short: that is what they are for."""

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "models"
# All Python of an architecture, counted by `lines_of`.
LIMITS = {
    "llama": 90,
    "mistral": 80,
    "qwen2": 90,
    "qwen3": 110,
    "gemma2": 100,
    "olmo2": 80,
    "phi3": 80,
    "gpt_oss": 110,
    "bert": 100,
    "gemma3": 260,
    "gemma_embedding": 10,
    "llama4": 340,
    "mllama": 340,
}


def files_of(architecture: str) -> list[Path]:
    single = MODELS / f"{architecture}.py"
    return [single] if single.is_file() else sorted((MODELS / architecture).rglob("*.py"))


def lines_of(source: str) -> int:
    """Lines of code when formatted at 100 columns: no blank lines, comments, docstrings."""
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "100", "-"]
    done = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True)
    lines = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(done.stdout).readline):
        if token.type not in skipped | {tokenize.ENDMARKER}:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(done.stdout)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body:
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                lines -= set(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def test_what_is_counted():
    source = '''"""A docstring

of three lines."""

# a comment
class A:  # counts once
    """Another."""

    text = """two
lines"""

    def f(self): return [
        1,
    ]
'''
    # class, text (2), def, return [, 1, ]
    assert lines_of(source) == 7


def test_long_lines_are_counted_as_they_are_formatted():
    assert lines_of(f"x = f({'a' * 60}, {'b' * 40})\n") == 4


@pytest.mark.parametrize("architecture", [a for a in LIMITS if files_of(a)])
def test_an_architecture_is_short(architecture: str):
    assert sum(lines_of(f.read_text()) for f in files_of(architecture)) <= LIMITS[architecture]


def test_every_architecture_has_a_limit():
    there = {p.stem for p in MODELS.iterdir() if p.name[0] not in "_." and files_of(p.stem)}
    assert "llama" in there
    assert there <= LIMITS.keys()
