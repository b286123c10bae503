"""The code and the table of docs/replies.md."""

from __future__ import annotations

import re

from ggmodel.chat.replies.families import FAMILIES, PLAIN
from tests.documents import blocks, printed, read

GUIDE = read("docs/replies.md")


def test_its_python_runs() -> None:
    (code,) = blocks(GUIDE, "python")
    said = printed(code, "docs/replies.md")
    assert "hermes Rome? Let me see. weather" in said
    assert "Reasoning(text='Rom')" in said
    assert "calls=(ToolCall(name='weather'" in said


def test_its_table_has_all_families() -> None:
    table = GUIDE[GUIDE.index("| family |") :]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == [
        family.name for family in (*FAMILIES, PLAIN)
    ]
