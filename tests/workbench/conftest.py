"""A tiny model to look into."""

from __future__ import annotations

from typing import Any

import pytest

from ggmodel.convert import from_hf
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from tests.golden.files import load_golden


@pytest.fixture(scope="session")
def source(vary: Any, vocabulary: dict[str, Any]) -> MemorySource:
    golden = load_golden("llama", "plain_gqa")
    return vary(from_hf(find("llama"), golden.config, golden.weights()), metadata=vocabulary)
