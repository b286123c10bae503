"""mllama: files and pixels that are not as they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, PromptError
from ggmodel.gguf_file import MemorySource
from ggmodel.model import find
from tests.conftest import Vary
from tests.golden.files import load_golden


@pytest.fixture(scope="module")
def source() -> MemorySource:
    golden = load_golden("mllama", "images")
    return from_hf(find("mllama"), golden.config, golden.weights())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision.intermediate_layers_indices": [0, -1]}, r"\[0, -1\] of \d layers"),
        ({"vision.intermediate_layers_indices": [0, 99]}, r"\[0, 99\] of"),
        ({"vision.attention.head_count": 5}, "it must divide 32"),
        ({"rope.freq_base": 0.0}, "rope of base 0"),
        ({"rope.freq_base": float("nan")}, "rope.freq_base is nan, no finite number"),
    ],
    ids=str,
)
def test_bad_metadata(source: MemorySource, vary: Vary, changes: dict[str, Any], message: str):
    metadata = {f"mllama.{key}": value for key, value in changes.items()}
    with pytest.raises(ConfigError, match=message):
        ggmodel.load(vary(source, metadata=metadata))


def test_bad_pixels(source: MemorySource):
    with ggmodel.load(source) as model:
        side = model.model.config.tile
        for tiles, size, ratio, message in (
            (5, side, 1, "5 tiles for the aspect_ratio_id 1"),
            (1, side, 4, "1 tiles for the aspect_ratio_id 4"),
            (1, side + 1, 1, "this model takes"),
            (1, side, "x", "its aspect_ratio_id is 'x'; give a whole number"),
            (1, side, 99, "aspect_ratio_id of 99"),
        ):
            pixels = np.zeros((tiles, 3, size, size), np.float32)
            with pytest.raises(PromptError, match=message):
                model.encode_image(pixels, aspect_ratio_id=ratio)
