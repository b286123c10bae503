"""Idefics3 and SmolVLM against transformers: tiles, and prompts with the text between them."""

from __future__ import annotations

import numpy as np
import pytest

import ggmodel
from ggmodel.workbench.golden import Cases, laid_out, nmse, source_of
from tests.golden.files import HERE, cases, load_golden
from tests.models.words import Words

SPECIAL = Cases(HERE / "idefics3").module.SPECIAL


@pytest.mark.parametrize("case", cases("idefics3"))
@pytest.mark.parametrize(("backend", "bound"), [("ggml", 1e-6), ("reference", 1e-10)])
def test_tiles_and_prompts(case: str, backend: str, bound: float):
    """ggml's GELU reads a table in F16; by numpy all is exact."""
    golden = load_golden("idefics3", case)
    with ggmodel.load(
        source_of(golden), backend=backend, kv_type="f32", flash_attention="off"
    ) as model:
        model.model.tokenizer = Words(SPECIAL)
        for picture in golden.pictures.values():
            seen = model.encode_media(picture.kind, picture.pixels, **picture.data)
            assert nmse(np.concatenate([e.rows for e in seen]), picture.rows) < bound
        for prompt in golden.prompts.values():
            assert nmse(model.logits(laid_out(model, golden, prompt)), prompt.logits) < bound
