"""The pictures that the example model which sees was trained on; no torch needed."""

import importlib
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def pictures():
    sys.path.insert(0, str(EXAMPLES / "training"))
    try:
        return importlib.import_module("shape_pictures")
    finally:
        sys.path.pop(0)


def test_a_number_stands_for_one_picture(pictures):
    shown = [pictures.picture(seed) for seed in range(60)]
    assert shown == [pictures.picture(seed) for seed in range(60)]
    assert len({pictures.draw(p).tobytes() for p in shown}) == 60
    assert {len(p.shapes) for p in shown} == {1, 2, 3, 4}


def test_shapes_are_drawn_where_and_as_they_are_said_to_be(pictures):
    for seed in range(60):
        shown = pictures.picture(seed)
        levels = np.asarray(pictures.draw(shown))
        height, width, _ = levels.shape
        assert (width, height) == shown.size
        for shape in shown.shapes:
            x, y = shape.centre
            assert tuple(levels[int(y * height), int(x * width)]) == shape.rgb
            assert np.hypot(*np.subtract(shape.centre, pictures.PLACES[shape.place])) < 0.05
        assert all(tuple(levels[y, x]) == shown.background for y in (0, -1) for x in (0, -1))


def test_a_question_has_one_answer(pictures):
    for seed in range(200):
        asked = [
            (question, answer) for _, question, answer in pictures.questions(pictures.picture(seed))
        ]
        assert len(dict(asked)) == len(set(asked))


def test_descriptions_go_from_left_to_right(pictures):
    assert pictures.description(pictures.SCENE) == "a red circle and a blue square."
    three = next(p for p in map(pictures.picture, range(99)) if len(p.shapes) == 3)
    names = [pictures.article(shape.name) for shape in three.shapes]
    assert pictures.description(three) == f"{names[0]}, {names[1]} and {names[2]}."


def test_asking_follows_the_chooser(pictures):
    shown = pictures.picture(3)
    asked = [pictures.ask(shown, random.Random(seed)) for seed in range(80)]
    assert asked == [pictures.ask(shown, random.Random(seed)) for seed in range(80)]
    answers = {(q, a) for _, q, a in pictures.questions(shown)}
    assert all((q[0].lower() + q[1:], a) in answers for _, q, a in asked)
    assert any(q[0].isupper() for _, q, _ in asked) and any(q[0].islower() for _, q, _ in asked)


def test_the_scene_is_the_picture_of_that_name(pictures):
    path = EXAMPLES / "assets" / "scene.png"
    assert path.stat().st_size < 20_000
    with Image.open(path) as image:
        colours = image.convert("RGB").getcolors()
    assert {colour for _, colour in colours} == {
        pictures.COLOURS["red"],
        pictures.COLOURS["blue"],
        pictures.SCENE.background,
    }
