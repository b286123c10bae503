"""llama4: files that are not as they should be."""

from __future__ import annotations

import math
from typing import Any

import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from ggmodel.nn.rope import yarn_factors
from ggmodel.workbench.golden import nmse
from tests.conftest import Vary
from tests.golden.files import load_golden


@pytest.fixture(scope="module")
def source() -> MemorySource:
    golden = load_golden("llama4", "images")
    return from_hf(find("llama4"), golden.config, golden.weights())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.floor_scale": 0}, "floor_scale is 0; it must be 1 or more"),
        ({"no_rope_interval": -2}, "no_rope_interval is -2; it must be 1 or more"),
        ({"rope.freq_base": 0.0}, "rope of base 0"),
    ],
    ids=str,
)
def test_bad_metadata(source: MemorySource, vary: Vary, changes: dict[str, Any], message: str):
    metadata = {f"llama4.{key}": value for key, value in changes.items()}
    with pytest.raises(ConfigError, match=message):
        ggmodel.load(vary(source, metadata=metadata))


def test_a_scaling_that_no_published_config_has():
    """All kinds of scaling come from `nn.Rotary`; the factors are checked in tests/nn."""
    golden = load_golden("llama4", "llama3_rope")
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    config = {**golden.config, "rope_scaling": scaling}
    yarn = from_hf(find("llama4"), config, golden.weights())
    assert yarn.metadata["llama4.rope.scaling.type"] == "yarn"
    assert "rope_freqs.weight" not in yarn.tensors
    with ggmodel.load(yarn, kv_type="f32") as model:
        caches: list[Any] = list(model.model.caches())
        ropes = [declared.rope for declared in caches]
        assert [rope is not None for rope in ropes] == [True, False, True]
        h = model.model.config
        assert ropes[0].magnitude == pytest.approx(0.1 * math.log(4) + 1)
        assert (ropes[0].scale, ropes[0].base) == (1.0, h.rope_base)
        assert (ropes[0].factors.floats() == yarn_factors(h)).all()
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) > 1e-6
