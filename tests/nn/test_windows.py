"""Which layers see a window only."""

from __future__ import annotations

import pytest

from ggmodel import nn
from ggmodel.errors import ConfigError


def test_layers_listed_by_kind():
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    assert nn.sliding_layers({"layer_types": kinds}) == [False, True, False]
    assert nn.sliding_layers({}) is None


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
