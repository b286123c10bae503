"""llama4: files that are not as they should be."""

from __future__ import annotations

from typing import Any

import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
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
