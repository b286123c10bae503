"""The parts of `Model` that architectures override."""

from __future__ import annotations

from typing import Any

import pytest

from ggmodel import Config, Model
from ggmodel.errors import Unsupported


class Blind(Model):
    config: Config


def test_a_model_sees_nothing_and_has_no_largest_image_by_default():
    model: Any = Blind(Config())
    assert not model.sees
    with pytest.raises(Unsupported, match="Blind has no largest_image"):
        _ = model.largest_image
