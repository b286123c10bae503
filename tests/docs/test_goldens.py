"""docs/goldens.md has a row of each golden and of each architecture."""

from __future__ import annotations

from tests.documents import ROOT
from tests.golden.files import HERE, cases
from tests.golden.table import lines_table

PAGE = (ROOT / "docs" / "goldens.md").read_text().splitlines()
WRITE = "run python -m tests.golden.table"


def test_every_golden_has_a_row():
    goldens = {
        f"{folder.name}: {case}"
        for folder in (path.parent for path in HERE.glob("*/cases.py"))
        for case in (*cases(folder.name), *cases(folder.name, "embeddings"))
    }
    rows = {line.split("|")[1].strip() for line in PAGE if line.count("|") > 3}
    assert goldens <= rows, WRITE
    assert {row for row in rows if ": " in row and "," not in row} <= goldens, WRITE


def test_every_architecture_has_its_lines():
    assert lines_table() in "\n".join([*PAGE, ""]), WRITE
