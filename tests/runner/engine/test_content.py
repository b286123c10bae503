"""Items as keys: equal content is equal, anything unknown is equal to itself only."""

from __future__ import annotations

import numpy as np

from ggmodel.model import Prepared
from ggmodel.runner.engine.encoders import content_key


class Opened:
    """A kind of item that another package may open."""


def test_equal_content_is_equal():
    values = np.arange(6, dtype=np.float32)
    keys = {content_key("image", Prepared(values.copy(), {"grid": (1, 2)})) for _ in range(3)}
    assert len(keys) == 1
    assert content_key("video", Prepared(values, {"grid": (1, 2)})) not in keys
    assert content_key("image", Prepared(values, {"grid": (2, 1)})) not in keys


def test_objects_of_one_address_differ():
    assert len({content_key("image", Opened()) for _ in range(100)}) == 100
    arrays = [np.array([None] * 3000, object) for _ in range(2)]
    assert content_key("image", arrays[0]) != content_key("image", arrays[1])
