"""Ropes with sections, and positions of images in three components."""

from __future__ import annotations

import numpy as np
import pytest

from ggmodel import Input, MultimodalEmbedding, nn
from ggmodel.errors import ConfigError, PromptError
from ggmodel.ml import RopeType
from ggmodel.nn import Rope, grid_positions, rope_sections

NONE = np.zeros((0, 4), np.int32)


def image(*grid: int) -> list[Input]:
    rows = MultimodalEmbedding(np.ones((int(np.prod(grid)), 2)), grid)
    return [Input(0, rows), *[Input(0)] * (len(rows) - 1)]


def test_rows_are_a_grid_and_text_goes_on_behind_its_side():
    inputs = [Input(7), Input(8), *image(1, 2, 3), Input(9), *image(1, 1, 1), Input(9)]
    found = grid_positions(inputs, NONE, lambda grid: grid)
    assert found.dtype == np.int32
    assert found[:, 3].tolist() == found[:, 0].tolist()
    assert found[:, :3].T.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7],
    ]


def test_frames_do_not_count_for_what_follows():
    inputs = [*image(4, 1, 2), Input(9)]
    found = grid_positions(inputs, NONE, lambda grid: grid)
    assert found[:, :3].T.tolist() == [
        [0, 0, 1, 1, 2, 2, 3, 3, 2],
        [0, 0, 0, 0, 0, 0, 0, 0, 2],
        [0, 1, 0, 1, 0, 1, 0, 1, 2],
    ]
    timed = grid_positions(inputs, NONE, lambda grid: ([0, 5, 10, 15], *grid[1:]))
    assert timed[:, 0].tolist() == [0, 0, 5, 5, 10, 10, 15, 15, 2]


@pytest.mark.parametrize("cut", [1, 2, 8, 9, 13])
def test_positions_in_pieces_are_those_at_once(cut: int):
    inputs = [Input(7), Input(8), *image(1, 2, 3), Input(9), *image(2, 1, 2), Input(9)]
    whole = grid_positions(inputs, NONE, lambda grid: grid)
    first = grid_positions(inputs[:cut], NONE, lambda grid: grid)
    rest = grid_positions(inputs[cut:], first, lambda grid: grid)
    np.testing.assert_array_equal(np.concatenate([first, rest]), whole)


def test_another_number_of_rows_is_an_error():
    with pytest.raises(PromptError, match="an image of 6 rows, which are no grid of 1 x 2 x 2"):
        grid_positions(image(1, 2, 3), NONE, lambda _: (1, 2, 2))


@pytest.mark.parametrize("kind", [RopeType.MROPE, RopeType.IMROPE])
@pytest.mark.parametrize("sections", [(), (4, 4), (4, 2, 1, 0), (0, 0, 0, 8), (-1, 5, 4, 0)])
def test_sections_that_do_not_fit(kind: RopeType, sections: tuple[int, ...]):
    with pytest.raises(ConfigError, match=r"a rope of 16 dims with sections .* 8 together"):
        Rope(16, type=kind, sections=sections)


@pytest.mark.parametrize("pairs", [2, 8, 32, 64])
@pytest.mark.parametrize("three", [(24, 20, 20), (11, 11, 10), (3, 2, 1), (0, 9, 0), (1, 0, 40)])
def test_sections_of_an_interleaved_rope(pairs: int, three: tuple[int, int, int]):
    """Wider or narrower than the rope: transformers' slices (modeling_qwen3_vl,
    `apply_interleaved_mrope`) give the second and third component the same pairs."""

    class Config(nn.RopeConfig):
        rope_dims = 2 * pairs

    want = [0] * pairs
    for k in (1, 2):
        want[k : 3 * three[k] : 3] = [k] * len(want[k : 3 * three[k] : 3])
    sections = nn.Rotary(Config()).rope(RopeType.IMROPE, (*three, 0)).sections
    assert sum(sections) == pairs
    found = [i % 3 if i < 3 * sections[i % 3] else 0 for i in range(pairs)]
    assert found == want


@pytest.mark.parametrize("kind", [RopeType.NORM, RopeType.NEOX, RopeType.VISION])
def test_sections_of_other_types(kind: RopeType):
    with pytest.raises(ConfigError, match=f"type {kind.name} with sections"):
        Rope(16, type=kind, sections=(4, 2, 2, 0))


def test_components():
    assert Rope(16).components == 1
    assert Rope(16, type=RopeType.IMROPE, sections=(4, 2, 2, 0)).components == 4


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}},
        {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2, 0]}},
        {"rope_parameters": {"full_attention": {"mrope_section": [4, 2, 2]}}},
    ],
)
def test_sections_of_a_config(config: dict):
    assert rope_sections(config) == [4, 2, 2, 0]
    assert rope_sections({"rope_scaling": {"type": "linear"}}) is None


def test_sections_that_are_none():
    with pytest.raises(ConfigError, match="mrope_section is 3; three or four numbers"):
        rope_sections({"rope_scaling": {"mrope_section": 3}})
