"""Which file a tag means, held by answers of llama.cpp's own code.

The table has `find_best_model`, `find_best_mmproj` and `get_split_files` of its
common/download.cpp, compiled and asked.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmodel.names import grammar

TABLE = json.loads((Path(__file__).parent / "llama_cpp_choices.json").read_text())


def test_the_choices_are_those_of_llama_cpp():
    assert len(TABLE) > 70
    for row in TABLE:
        files, model = row["files"], grammar.best_model(row["files"], row["tag"])
        assert (model or "") == row["model"], row
        if model is not None:
            assert (grammar.best_mmproj(files, model) or "") == row["mmproj"], row
            assert grammar.parts_of(files, model) == row["parts"], row


@pytest.mark.parametrize("tag", ["Q.", "Q[48]", "("])
def test_a_tag_is_no_pattern(tag: str):
    assert grammar.best_model(["m-Q4_K_M.gguf", "m-Q8_0.gguf"], tag) is None
