"""The layers of every architecture of text are captured and patched."""

from __future__ import annotations

import numpy as np
import pytest

import ggmodel
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.text import CASES, golden_of

FIRST = {case.partition("/")[0]: case for case in reversed(CASES)}


@pytest.mark.filterwarnings("ignore:LongRoPE")
@pytest.mark.parametrize("arch", sorted(FIRST))
def test_layers_are_captured_and_patched(arch: str):
    golden = golden_of(FIRST[arch])
    ids = [int(token) for token in golden.prompt[:6]]
    with ggmodel.load(source_of(golden), kv_type="f32", context_length=64) as model:
        plain = model.logits(ids)
        with model.capture("layers.*") as seen:
            assert nmse(model.logits(ids), plain) < 1e-9  # the last layer has all rows
        assert [*seen] == model.residual
        assert {len(rows) for rows in seen.values()} == {len(ids)}
        with model.patch({model.residual[-1]: lambda rows: np.roll(rows, 1, axis=1)}):
            assert nmse(model.logits(ids), plain) > 1e-3
