"""InternVL against transformers: both towers, and prompts with tiles and frames."""

from __future__ import annotations

import numpy as np
import pytest

import ggmodel
from ggmodel.workbench.golden import Cases, laid_out, nmse, source_of
from tests.golden.files import HERE, cases, load_golden
from tests.models.words import Words

SPECIAL = Cases(HERE / "internvl").module.SPECIAL


@pytest.mark.parametrize("case", cases("internvl"))
@pytest.mark.parametrize("backend", ["ggml", "reference"])
def test_tiles_frames_and_prompts(case: str, backend: str):
    """GELU is by erf, without ggml's table: sums in another order are all that differs."""
    golden = load_golden("internvl", case)
    with ggmodel.load(
        source_of(golden), backend=backend, kv_type="f32", flash_attention="off"
    ) as model:
        model.model.tokenizer = Words(SPECIAL)
        for picture in golden.pictures.values():
            seen = model.encode_media(picture.kind, picture.pixels, **picture.data)
            assert nmse(np.concatenate([e.rows for e in seen]), picture.rows) < 1e-10
        for prompt in golden.prompts.values():
            assert nmse(model.logits(laid_out(model, golden, prompt)), prompt.logits) < 1e-10
