"""docs/reference.md is what the code says."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ggmodel.runner.options import LoadOptions
from ggmodel.runner.request_options import ChatOptions

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate_reference.py"))


def test_the_page_is_what_the_code_says(generator: dict[str, Any]):
    assert (DOCS / "reference.md").read_text("utf-8") == generator["document"](), (
        "write it again: python docs/generate_reference.py"
    )


def test_every_option_has_a_row():
    page = (DOCS / "reference.md").read_text("utf-8")
    rows = Counter([*LoadOptions.__annotations__, *ChatOptions.__annotations__])
    for name, count in rows.items():  # `steer` and `adapters` are options of both
        assert page.count(f"\n| `{name}` |") == count, name


def test_an_option_without_a_description_is_an_error(generator: dict[str, Any]):
    bare = type("Bare", (), {"__annotations__": {"threads": "int"}})
    with pytest.raises(LookupError, match=r"Bare\.threads is not described"):
        list(generator["options_of"](bare, {}, bare))
