"""Models of text: impossible metadata, and unsupported variants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ggmodel
from ggmodel.errors import Unsupported
from ggmodel.workbench.golden import source_of
from tests.conftest import Vary
from tests.golden.text import golden_of

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2/window", {"attention.sliding_window_pattern": [True]}, "pattern of 1 for 4 layers"),
    ("qwen2/window", {"attention.sliding_window": -1, "rope.freq_base": 0.0}, "rope of base 0"),
    ("qwen2/window", {"attention.head_count": 0}, "shape|no value"),
    ("qwen2/yarn", {"rope.scaling.type": "dynamic"}, "'dynamic' is unsupported"),
    ("qwen3/plain", {"attention.key_length": 0}, "shape"),
    ("qwen3/experts", {"expert_used_count": 0}, "top_k"),
    ("qwen3/experts", {"expert_used_count": 5}, "top_k"),
    ("qwen3/experts", {"expert_feed_forward_length": 0}, "shape"),
    ("gemma2/published", {"attn_logit_softcapping": -1.0}, "softcap -1"),
    ("gemma2/published", {"attn_logit_softcapping": float("nan")}, "no finite number"),
    ("gemma2/published", {"attention.head_count": 0}, "shape"),
    ("mistral/window", {"attention.sliding_window": -1}, "window of -1 positions"),
    ("phi3/plain", {"rope.dimension_count": 15}, "even and no more"),
    ("phi3/plain", {"rope.dimension_count": 18}, "even and no more"),
    ("phi3/plain", {"attention.head_count": 0}, "shape|no value"),
    ("phi3/partial", {"rope.dimension_count": 16}, "6 factors for 8 pairs"),
    ("olmo2/windows", {"attention.sliding_window_pattern": [True] * 3}, "pattern of 3 for 4"),
    ("olmo2/plain", {"attention.head_count": 0}, "shape|no value"),
]


@pytest.mark.parametrize(
    ("case", "changes", "message"), BAD, ids=[f"{case} {changes}" for case, changes, _ in BAD]
)
def test_bad_metadata(vary: Vary, case: str, changes: dict[str, Any], message: str):
    source = source_of(golden_of(case))
    arch = source.metadata["general.architecture"]
    metadata = {f"{arch}.{key}": value for key, value in changes.items()}
    with pytest.raises(ggmodel.Error, match=message):
        ggmodel.load(vary(source, metadata=metadata), flash_attention="on")


def test_a_gemma_2_that_sees_later_tokens_is_refused():
    golden = golden_of("gemma2/published")
    seeing = {**golden.config, "use_bidirectional_attention": True}
    with pytest.raises(Unsupported, match="bidirectional attention"):
        ggmodel.load(source_of(replace(golden, config=seeing)))
