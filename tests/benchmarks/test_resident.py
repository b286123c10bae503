"""A run that fills the context takes the memory that was estimated, in a process of its own."""

from __future__ import annotations

import sys

import pytest
from benchmarks import resident

CONTEXT = 4096
# Python's own part of a text: its tokens in lists, and pairs of them to look up; bytes a token.
A_TOKEN = 150
# The system and the interpreter take so much more in one run than in another.
NOISE = 1 << 20


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells the memory")
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama/plain_gqa", {"kv_type": "f32"}),
        ("llama/plain_gqa", {"flash_attention": "off", "kv_type": "f32"}),
        ("gemma3/every_6th", {"flash_attention": "off"}),  # two kinds of caches
        ("llama/experts", {"kv_type": "f32"}),
    ],
)
def test_a_full_context_takes_what_was_estimated(model: str, options: dict):
    row = resident.measured(model, CONTEXT, **options)
    taken = row.taken - row.beside
    # The cache, masks and results are far above what is allowed.
    assert row.estimate > 4 << 20
    assert taken < 1.03 * row.estimate + CONTEXT * A_TOKEN + NOISE
    assert taken > 0.9 * row.estimate - NOISE
    assert row.beside < 20 << 20
