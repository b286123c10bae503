"""Code and commands in the documents, for tests that run them."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    """The text of a document, "README.md" or "docs/chat.md"."""
    return (ROOT / name).read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The lines that begin with `ggmodel`."""
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("ggmodel ")]


def printed(code: str, name: str) -> str:
    """Runs the Python code of a document in the repository's root, and gives its output."""
    before, said = Path.cwd(), io.StringIO()
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(code, name, "exec"), {})
    finally:
        os.chdir(before)
    return said.getvalue()


def without_code(text: str) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The names that links to parts of a document end with, as GitHub makes them of headings, or
    those of `<a id="…">`."""
    counts = Counter[str]()
    names = set[str]()
    for heading in re.findall(r"^#{1,6} (.*)$", without_code(text), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names.add(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return names | set(re.findall(r'<a id="([^"]+)"', text))
