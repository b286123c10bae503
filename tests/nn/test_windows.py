"""Which layers see a window only."""

from __future__ import annotations

from typing import Any

import pytest

from ggmodel import nn
from ggmodel.convert.keys import Watched
from ggmodel.errors import ConfigError


def test_layers_listed_by_kind():
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    assert nn.sliding_layers({"layer_types": kinds}) == [False, True, False]
    assert nn.sliding_layers({}) is None


LAYERS = {"num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("hf", "want"),
    [
        ({"sliding_window_pattern": 2}, [True, False, True, False]),
        ({"_sliding_window_pattern": 3}, [True, True, False, True]),
        ({"sliding_window_pattern": 1}, [False] * 4),
        ({"sliding_window_pattern": "LLG"}, [True, True, False, True]),
        ({"max_window_layers": 1}, [False, True, True, True]),
        ({"max_window_layers": 0}, [True] * 4),
        ({"max_window_layers": 3, "sliding_window_pattern": 2}, [False, False, False, True]),
        ({"max_window_layers": 1, "use_sliding_window": True}, [False, True, True, True]),
        ({"max_window_layers": 1, "use_sliding_window": False}, None),
        ({"max_window_layers": 1, "layer_types": ["sliding_attention"] * 4}, [True] * 4),
        ({"sliding_window_pattern": None}, None),
    ],
    ids=str,
)
def test_every_published_spelling(hf: dict[str, Any], want: list[bool] | None):
    assert nn.sliding_layers(LAYERS | hf) == want


@pytest.mark.parametrize(
    ("hf", "message"),
    [
        (
            {"layer_types": ["linear"]},
            "layer_types has 'linear'; supported: ",
        ),
        ({"sliding_window_pattern": "LXG"}, "sliding_window_pattern is 'LXG'; supported: "),
        ({"sliding_window_pattern": ""}, "sliding_window_pattern is ''; supported: "),
        ({"sliding_window_pattern": -1}, "sliding_window_pattern is -1; supported: "),
        ({"sliding_window_pattern": True}, "sliding_window_pattern is True; supported: "),
        ({"sliding_window_pattern": [1]}, r"sliding_window_pattern is \[1\]; supported: "),
    ],
    ids=str,
)
def test_an_unknown_spelling_is_refused(hf: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        nn.sliding_layers(LAYERS | hf)


@pytest.mark.parametrize("reads", [nn.sliding_layers, nn.sliding_window])
def test_a_switch_that_is_off_is_looked_at_with_all_others(reads: Any):
    hf = Watched({"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 1})
    assert reads(hf) is None
    other = {"max_window_layers"} if reads is nn.sliding_layers else {"sliding_window"}
    assert hf.looked_up == {"use_sliding_window"} | other


@pytest.mark.parametrize(("switch", "want"), [({}, 4), ({"use_sliding_window": True}, 4)])
def test_a_window(switch: dict[str, Any], want: int):
    assert nn.sliding_window({"sliding_window": 4} | switch) == want
    assert nn.sliding_window(switch) is None


@pytest.mark.parametrize(
    ("pattern", "want"),
    [
        ([True, False, True, True], [True, False, True, True]),
        ([1, 0, 1, 1], [True, False, True, True]),
        ([2], [True, False, True, False]),
        ([3], [True, True, False, True]),
        ([1], [False] * 4),
        ([0], [True] * 4),
    ],
    ids=str,
)
def test_a_pattern_or_one_number(pattern: list, want: list[bool]):
    assert nn.local_layers(pattern, 4, 8) == want


def test_without_a_window_no_layer_is_local():
    assert nn.local_layers([True] * 4, 4, 0) == [False] * 4


def test_one_layer_with_a_flag_of_its_own():
    assert nn.local_layers([True], 1, 8) == [True]


@pytest.mark.parametrize("pattern", [[-1], ["a"], [1.5]], ids=str)
def test_what_is_no_pattern_is_refused(pattern: list):
    with pytest.raises(ConfigError, match=r"sliding_window_pattern of .*; it must be 0 or more"):
        nn.local_layers(pattern, 4, 8)


@pytest.mark.parametrize("pattern", [[], [True], [True] * 3], ids=str)
def test_a_pattern_of_another_length_is_refused(pattern: list):
    with pytest.raises(ConfigError, match=f"sliding_window_pattern of {len(pattern)} for 4"):
        nn.local_layers(pattern, 4, 8)
