"""docs/ladder.md is what the data of the tests say, and every architecture is on it."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest

from tests.documents import ROOT, read


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "generate_ladder.py"))


def test_the_page_is_what_the_tests_prove(generator: dict[str, Any]):
    assert read("docs/ladder.md") == generator["document"](), (
        "write it again: python -m docs.generate_ladder"
    )


def test_every_architecture_is_proven(generator: dict[str, Any]):
    rows = re.findall(r"^\| (`.*) \|$", read("docs/ladder.md"), re.MULTILINE)
    assert len(rows) >= 75
    for row in rows:
        proven = dict(zip(generator["COLUMNS"], row.split(" | "), strict=True))
        for column in ("text", "batch", "rounded", "converted", "llama.cpp", "lines"):
            assert proven[column].strip(), (proven["architecture"], column)
