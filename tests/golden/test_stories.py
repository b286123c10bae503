"""The embedded model against the framework that trained it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import ggmodel
import numpy as np
import pytest
from ggmodel.runner import LoadedModel

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = json.loads((EXAMPLES / "assets" / "stories.json").read_text())


@pytest.fixture(scope="module")
def stories() -> Iterator[LoadedModel]:
    with ggmodel.load(EXAMPLES / "assets" / "stories.gguf") as model:
        yield model
