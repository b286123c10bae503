"""Linear rope scaling: its keys, and the numbers that switch it off."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf, metadata_of, normalize
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from tests.golden.files import load_golden


@pytest.fixture(scope="module")
def source() -> MemorySource:
    golden = load_golden("llama", "plain_gqa")
    return from_hf(find("llama"), golden.config, golden.weights())


def logits(source: MemorySource) -> np.ndarray:
    with ggmodel.load(source, kv_type="f32", context_length=32) as model:
        return np.asarray(model.logits(list(range(20))))


@pytest.mark.parametrize(
    ("kind", "factor", "same"),
    [("linear", 0.0, True), ("none", 8.0, True), ("linear", 1.0, True), ("linear", 8.0, False)],
)
def test_a_factor_of_0_and_the_type_none_switch_it_off(
    vary: Any, source: MemorySource, kind: str, factor: float, same: bool
):
    keys = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": factor}
    found = logits(vary(source, metadata=keys))
    assert np.array_equal(found, logits(source)) == same


@pytest.mark.parametrize("kind", ["linear", "yarn"])
@pytest.mark.parametrize("factor", [0, 0.0, -2.0, math.nan])
def test_a_factor_that_is_not_above_0_in_a_config_is_refused(kind: str, factor: float):
    scaling = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": 16}
    config = load_golden("llama", "plain_gqa").config | {"rope_scaling": scaling}
    with pytest.raises(ConfigError, match=rf"factor of rope_scaling is {factor}; it must be above"):
        metadata_of(find("llama"), normalize(config))


@pytest.mark.parametrize("case", ["linear_rope", "every_6th"])
def test_gemma3_writes_its_type_and_factor(case: str):
    config = load_golden("gemma3", case).config
    metadata = metadata_of(find("gemma3"), normalize(config))
    scaled = {k: v for k, v in metadata.items() if ".rope.scaling." in k}
    begin = "gemma3.rope.scaling."
    assert scaled.get(begin + "type") == ("linear" if case == "linear_rope" else None)
    assert scaled.get(begin + "factor", 1) == (8 if case == "linear_rope" else 1)
