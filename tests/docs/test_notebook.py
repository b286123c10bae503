"""The cells of docs/notebook.md, run in one namespace as a notebook does."""

from __future__ import annotations

import ast
import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT, blocks, read


def run(cell: str, space: dict[str, Any]) -> tuple[str, Any]:
    """The text that a cell prints, and the value of its last line where that is an expression."""
    body = ast.parse(cell).body
    last = body[-1] if isinstance(body[-1], ast.Expr) else None
    body = body if last is None else body[:-1]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), "docs/notebook.md", "exec", dont_inherit=True), space)
        if last is None:
            return printed.getvalue(), None
        value = eval(compile(ast.Expression(last.value), "docs/notebook.md", "eval"), space)
    return printed.getvalue(), value


def test_its_cells_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    space: dict[str, Any] = {"__name__": "__main__"}
    cells = blocks(read("docs/notebook.md"), "python")
    results = [run(cell, space) for cell in cells]
    assert "2.3 million parameters" in results[0][1]._repr_html_()
    assert "tokens/s" in results[1][1]._repr_html_()
    assert results[2][0].splitlines()[1] == "'' ()"
    assert results[3][0].split()[0] in ("fox", "bear", "owl")
    roles = [line.split()[0] for line in results[4][0].splitlines() if line.strip()]
    assert roles[:3] == ["user", "assistant", "tool"]
    assert "It snows in" in results[4][0]
    assert results[5][0].split()[-1] in ("stop", "length")
    assert space["model"].backend.closed


def test_its_page_is_linked():
    assert "notebook.md" in Path(ROOT / "docs" / "index.md").read_text("utf-8")
    assert "docs/notebook.md" in Path(ROOT / "README.md").read_text("utf-8")
