"""The program runs; how fast is for docs/benchmarks.md to say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks import prefix

STORIES = Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf"


def test_both_questions_are_timed(capsys: pytest.CaptureFixture[str]):
    prefix.main(str(STORIES), "200", "4")
    said = capsys.readouterr().out
    first, second, ratio = map(float, re.findall(r"(\d+\.\d+)(?: ms|$)", said, re.M))
    assert said.startswith("stories.gguf, 200 + 4 tokens: ")
    assert ratio == pytest.approx(second / first, rel=0.1)
