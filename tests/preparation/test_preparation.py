"""Every model prepares pictures and sounds as its processor in transformers does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.preparation.cases import CASES, GOLDENS, blank, items, model_of, sampled, without_padding

# The processors resize with Pillow, most models as torchvision does, whose weights are rounded in
# another way: one level of 255 (1.00001 measured; idefics3, as Pillow, 2e-5). Spectra are float32.
LEVEL, SPECTRUM = 1.01, 1e-6


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    with np.load(GOLDENS, allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize("name", CASES)
def test_items_are_prepared_as_by_transformers(golden: dict[str, Any], name: str):
    case, theirs = CASES[name], json.loads(str(golden["shapes"]))[name]
    given = items(case.kind)
    model = model_of(name)
    prepare = model.modalities()[case.kind].prepare
    ours = [prepare(item) for item in given + (blank() if case.kind == "image" else [])]
    level = LEVEL / 255 / float(np.min(getattr(model.config, "image_std", 1.0)))
    values = [without_padding(one) for one in ours]
    shapes = [
        [list(v.shape), {key: json.loads(json.dumps(one.data[key])) for key in data}]
        for v, one, (_, data) in zip(values, ours, theirs, strict=True)
    ]
    assert shapes == theirs
    samples = np.stack([sampled(v) for v in values[: len(given)]])
    bound = level if case.kind == "image" else SPECTRUM
    np.testing.assert_allclose(samples, golden[name], rtol=0, atol=bound)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.kind == "image"])
def test_files_without_a_method_are_resized_as_by_transformers(golden: dict[str, Any], name: str):
    """A key of the usual method is not written: llama.cpp's files have none, either."""
    model = model_of(name, without="vision.resample")
    prepare = model.modalities()["image"].prepare
    samples = np.stack([sampled(without_padding(prepare(item))) for item in items("image")])
    level = LEVEL / 255 / float(np.min(getattr(model.config, "image_std", 1.0)))
    np.testing.assert_allclose(samples, golden[name], rtol=0, atol=level)
