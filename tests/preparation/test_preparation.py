"""Every model prepares pictures and sounds as its processor in transformers does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.preparation.cases import (
    CASES,
    bound_of,
    check_preparation,
    items,
    model_of,
    recorded,
    sampled,
    without_padding,
)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return recorded()


@pytest.mark.parametrize("name", CASES)
def test_items_are_prepared_as_by_transformers(golden: dict[str, Any], name: str):
    check_preparation(golden, name, model_of(name))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.kind == "image"])
def test_files_without_a_method_are_resized_as_by_transformers(golden: dict[str, Any], name: str):
    """A key of the usual method is not written: llama.cpp's files have none, either."""
    model = model_of(name, without="vision.resample")
    prepare = model.modalities()["image"].prepare
    samples = np.stack([sampled(without_padding(prepare(item))) for item in items("image")])
    np.testing.assert_allclose(samples, golden[name], rtol=0, atol=bound_of(model, "image"))
