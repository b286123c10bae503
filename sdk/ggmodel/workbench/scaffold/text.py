"""Templates for the files of a new architecture, with placeholders like @NAME@."""

CASES = '''\
"""Tiny configurations of @NAME@, as the config.json a checkpoint would have.

Sizes are small and widths multiples of 32; weights are derived from the names of the tensors. Add a
case for each variant of released configs: tied embeddings, other numbers of heads, other scalings
of rope.
"""

CASES = {
    "plain": @CONFIG@,
}
'''

TEST = '''\
"""@NAME@ against transformers, on tiny checkpoints: `ggmodel golden` in a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggmodel.workbench import golden

GOLDENS = Path(__file__).parent


@pytest.mark.parametrize("case", golden.Cases(GOLDENS).configs)
def test_equals_transformers(case: str) -> None:
    for outcome in golden.check(GOLDENS, case, models=GOLDENS.parents[1]):
        assert outcome.ok, str(outcome)
'''

README = """\
# @NAME@

An architecture for ggmodel, begun from @TEMPLATE@.

| file | content |
|---|---|
| `@MODEL@` | the model |
| `goldens/@FILE@/` | tiny configurations, their results in transformers, and the test |

With torch and transformers installed:

    ggmodel golden @NAME@ --models . --update

Everywhere:

    # The distance from transformers:
    ggmodel golden @NAME@ --models .
    # A checkpoint to try things on, and the first module that differs (this needs transformers):
    ggmodel golden @NAME@ --models . --checkpoint tiny
    ggmodel diff tiny --models . --tokens 1,5,9,22
    # A released checkpoint:
    ggmodel convert HF_DIR @FILE@.gguf --models .
    ggmodel run @FILE@.gguf "Hello" --models .
    # All tests:
    pytest
"""
