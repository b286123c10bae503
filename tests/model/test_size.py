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
    "apertus": 55,
    "arcee": 20,
    "bailingmoe2": 40,
    "bloom": 40,
    "bart": 120,  # two stacks of layers, and a forced first token
    "bert": 33,
    "cohere2": 25,
    "command_r": 25,
    "ernie4_5": 20,
    "eurobert": 30,
    "exaone4": 25,
    "falcon_h1": 95,
    "afmoe": 55,
    "deepseek2": 75,
    "deepseek4": 350,  # hyper-connections, compressors, an indexer, checks of their tensors
    "dots1": 35,
    "ernie4_5_moe": 35,
    "exaone_moe": 30,
    "gemma": 30,
    "gemma2": 50,
    "gemma3": 190,
    "gemma3n": 650,
    "gemma4": 600,
    "glm4": 30,
    "glm_ocr": 200,
    "gpt2": 45,
    "glm4moe": 30,
    "gpt_oss": 60,
    "gptneox": 30,
    "granite": 20,
    "granitehybrid": 75,
    "granitemoe": 20,
    "hunyuan_dense": 45,
    "hunyuan_moe": 25,
    "idefics3": 250,
    "internvl": 265,
    "jamba": 60,
    "kimi_linear": 120,  # delta nets by channel, latent attention, experts
    "laguna": 85,  # heads, gates and ropes by layer
    "lfm2": 130,
    "lfm2vl": 225,  # tiles and a view of the whole, each of any shape
    "llama": 30,
    "llama4": 260,
    "mamba": 45,
    "mamba2": 35,
    "marian": 40,
    "minimax_m2": 30,
    "mistral": 30,
    "muse_glimmer": 67,  # the keys of a tower that is left out
    "mistral3": 255,
    "mllama": 240,
    "modern_bert": 70,
    "moonshine": 150,  # an encoder of samples
    "mpnet": 45,
    "mpt": 50,
    "nemotron": 25,
    "nemotron_h": 130,  # dense, and with experts that see fewer numbers
    "nomic_bert": 50,
    "olmo": 30,
    "olmo2": 35,
    "olmo_hybrid": 95,
    "olmoe": 25,
    "paddleocr": 205,  # 24 of them are shared with glm_ocr
    "phi3": 25,
    "phimoe": 50,
    "qwen2": 30,
    "qwen2moe": 30,
    "qwen2audio": 85,
    "qwen2vl": 315,
    "qwen3": 50,
    "qwen35": 240,
    "qwen3asr": 165,
    "qwen3vl": 90,
    "rwkv7": 120,  # tokens mixed with those before in two ways, maps of low rank for five uses
    "seed_oss": 20,
    "smollm3": 30,
    "stablelm": 35,
    "starcoder2": 25,
    "t5": 80,  # two stacks of layers
    "t5encoder": 20,
    "voxtral": 100,
    "whisper": 180,  # 23 of them are names of languages
}


def files_of(architecture: str) -> list[Path]:
    family = list(MODELS.glob(f"*/{architecture}.py"))
    return family or sorted((MODELS / architecture).rglob("*.py"))


def architectures() -> set[str]:
    """Architectures: of families by their files, others by their folders."""
    found = set()
    for folder in MODELS.glob("[!_.]*/"):
        alone = "import" in (folder / "__init__.py").read_text()
        found |= {folder.name} if alone else {p.stem for p in folder.glob("[!_]*.py")}
    return found


def lines_of(source: str) -> int:
    """Lines of code formatted at 100 columns: no blank lines, comments, docstrings, imports."""
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
        imports = isinstance(node, (ast.Import, ast.ImportFrom))
        typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.stmt) and (imports or typing):
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def test_what_is_counted():
    source = '''"""A docstring

of three lines."""

from typing import (
    Any,
)
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


@pytest.mark.parametrize("architecture", list(LIMITS))
def test_an_architecture_is_short(architecture: str):
    assert sum(lines_of(f.read_text()) for f in files_of(architecture)) <= LIMITS[architecture]


def test_every_architecture_has_a_limit():
    assert architectures() == LIMITS.keys()
