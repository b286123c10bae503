"""Pictures of coloured shapes, and what can be asked about them. Every picture has a number.

    picture(7)               what the picture shows: its size, background and shapes
    draw(picture(7))         the picture, RGB
    questions(picture(7))    everything that can be asked about it, with the answers

One to four shapes lie in one to four of five places: left, right, top, bottom and middle.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import partial

from PIL import Image, ImageDraw

TRAINING_SEEDS = range(1_000_000, 10_000_000)
HELD_OUT_SEEDS = range(1_000)

COLOURS = {
    "red": (215, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 215),
    "yellow": (245, 215, 30),
    "orange": (245, 135, 25),
    "purple": (130, 50, 170),
    "pink": (245, 130, 185),
    "black": (25, 25, 25),
}
KINDS = ("circle", "square", "triangle", "star", "heart")
PLACES = {
    "on the left": (0.2, 0.5),
    "at the top": (0.5, 0.2),
    "in the middle": (0.5, 0.5),
    "at the bottom": (0.5, 0.8),
    "on the right": (0.8, 0.5),
}
NUMBERS = ("no", "one", "two", "three", "four")

DESCRIBE = (
    "what is in the picture?",
    "what is in this picture?",
    "what is in the image?",
    "what is in this image?",
    "what's in the picture?",
    "what is this?",
    "what do you see?",
    "what do you see in the picture?",
    "what can you see?",
    "what can you see in this image?",
    "what does the picture show?",
    "what is shown here?",
    "describe the picture.",
    "describe this image.",
    "describe what you see.",
)
COUNT = (
    "how many shapes are there?",
    "how many shapes are in the picture?",
    "how many shapes do you see?",
    "how many shapes does the image show?",
    "how many are there?",
    "count the shapes.",
)
COLOUR = (
    "what colour is the {kind}?",
    "what color is the {kind}?",
    "which colour is the {kind}?",
    "which color does the {kind} have?",
    "what is the colour of the {kind}?",
)
WHERE = ("where is the {what}?", "where do you see the {what}?", "where is the {what} located?")
WHAT_AT = ("what is {place}?", "what do you see {place}?", "which shape is {place}?")
WHICH = ("which shape is {colour}?", "what is {colour}?", "what shape is {colour}?")
EXISTS = (
    "is there a {what}?",
    "is there a {what} in the picture?",
    "do you see a {what}?",
    "can you see a {what}?",
)


@dataclass(frozen=True)
class Shape:
    """A shape; centre and radius are fractions of the picture's sides."""

    kind: str
    colour: str
    place: str
    centre: tuple[float, float]
    radius: float
    rgb: tuple[int, int, int]

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True)
class Picture:
    """A picture; its shapes are in the order of `PLACES`."""

    size: tuple[int, int]
    background: tuple[int, int, int]
    shapes: tuple[Shape, ...]


def picture(seed: int) -> Picture:
    """The shapes of picture number `seed`: no two of one kind and colour."""
    chooser = random.Random(seed)
    count = chooser.choices((1, 2, 3, 4), (15, 45, 20, 20))[0]
    named = chooser.sample([(kind, colour) for kind in KINDS for colour in COLOURS], count)
    places = sorted(chooser.sample(list(PLACES), count), key=list(PLACES).index)
    width = chooser.randint(176, 288)
    height = round(width * chooser.uniform(0.8, 1.25))
    light = chooser.randint(225, 255)
    background = tuple(min(255, light + chooser.randint(-8, 8)) for _ in range(3))
    shapes = []
    for (kind, colour), place in zip(named, places, strict=True):
        x, y = PLACES[place]
        shift = partial(chooser.uniform, -0.03, 0.03)
        largest = 0.17 if count == 1 else 0.125
        shapes.append(
            Shape(
                kind,
                colour,
                place,
                (x + shift(), y + shift()),
                chooser.uniform(0.1, largest),
                tuple(max(0, min(255, c + chooser.randint(-12, 12))) for c in COLOURS[colour]),
            )
        )
    return Picture((width, height), background, tuple(shapes))


SCENE = Picture(
    (256, 224),
    (246, 246, 240),
    (
        Shape("circle", "red", "on the left", (0.21, 0.5), 0.125, COLOURS["red"]),
        Shape("square", "blue", "on the right", (0.79, 0.51), 0.12, COLOURS["blue"]),
    ),
)


def draw(shown: Picture) -> Image.Image:
    """The picture, RGB."""
    width, height = shown.size
    image = Image.new("RGB", shown.size, shown.background)
    pen = ImageDraw.Draw(image)
    for shape in shown.shapes:
        x, y = shape.centre[0] * width, shape.centre[1] * height
        radius = shape.radius * min(shown.size)
        points = [(x + radius * across, y + radius * down) for across, down in OUTLINES[shape.kind]]
        pen.polygon(points, fill=shape.rgb)
    return image


# A video: a shape a second, in FPS frames each.
FPS = 4
CLIP = tuple(
    replace(
        SCENE,
        shapes=(Shape(kind, colour, place, PLACES[place], 0.14, COLOURS[colour]),),
    )
    for kind, colour, place in (
        ("circle", "red", "on the left"),
        ("star", "blue", "in the middle"),
        ("triangle", "green", "on the right"),
    )
)


def draw_clip() -> list[Image.Image]:
    """The frames of `CLIP`; the shapes shrink, so that no two frames are alike."""
    frames = []
    for shown in CLIP:
        for n in range(FPS):
            shapes = tuple(replace(one, radius=one.radius - 0.004 * n) for one in shown.shapes)
            frames.append(draw(replace(shown, shapes=shapes)))
    return frames


def _round() -> list[tuple[float, float]]:
    turns = [2 * math.pi * n / 48 for n in range(48)]
    return [(math.cos(t), math.sin(t)) for t in turns]


def _star() -> list[tuple[float, float]]:
    turns = [(math.pi * n / 5, 0.42 if n % 2 else 1.1) for n in range(10)]
    return [(reach * math.sin(t), -reach * math.cos(t)) for t, reach in turns]


def _heart() -> list[tuple[float, float]]:
    turns = [2 * math.pi * n / 48 for n in range(48)]
    return [
        (
            math.sin(t) ** 3,
            -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 15,
        )
        for t in turns
    ]


# Corners around (0, 0), x to the right and y down, in units of the radius.
OUTLINES = {
    "circle": _round(),
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "triangle": [(0, -1), (1.05, 0.9), (-1.05, 0.9)],
    "star": _star(),
    "heart": _heart(),
}


def article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def description(shown: Picture) -> str:
    """The shapes from left to right: "a red circle, a blue square and an orange star."."""
    *first, last = [article(shape.name) for shape in shown.shapes]
    return f"{', '.join(first)} and {last}." if first else f"{last}."


def questions(shown: Picture) -> list[tuple[str, str, str]]:
    """Everything that can be asked about a picture.

    Returns:
        topic, question and answer of each. Shapes are only asked for by words that name one.
    """
    asked = [("describe", ask, description(shown)) for ask in DESCRIBE]
    asked += [("count", ask, f"{NUMBERS[len(shown.shapes)]}.") for ask in COUNT]
    kinds = [shape.kind for shape in shown.shapes]
    colours = [shape.colour for shape in shown.shapes]
    names = [shape.name for shape in shown.shapes]
    for shape in shown.shapes:
        words = [shape.name]
        if kinds.count(shape.kind) == 1:
            words.append(shape.kind)
            answer = f"{shape.colour}."
            asked += [("colour", ask.format(kind=shape.kind), answer) for ask in COLOUR]
        if colours.count(shape.colour) == 1:
            words.append(f"{shape.colour} shape")
            answer = f"the {shape.kind}."
            asked += [("which", ask.format(colour=shape.colour), answer) for ask in WHICH]
        answer = f"{shape.place}."
        asked += [("where", ask.format(what=what), answer) for ask in WHERE for what in words]
    for place in PLACES:
        there = [shape.name for shape in shown.shapes if shape.place == place]
        answer = f"{article(there[0])}." if there else "nothing."
        asked += [("what", ask.format(place=place), answer) for ask in WHAT_AT]
    for kind in KINDS:
        answer = "yes." if kind in kinds else "no."
        asked += [("exists", ask.format(what=kind), answer) for ask in EXISTS]
    for name in [
        *names,
        *(f"{colour} {kind}" for colour in dict.fromkeys(colours) for kind in kinds),
    ]:
        answer = "yes." if name in names else "no."
        ask = EXISTS[len(name) % len(EXISTS)].replace("a {what}", article(name))
        asked.append(("exists", ask, answer))
    return asked


def ask(shown: Picture, chooser: random.Random) -> tuple[str, str, str]:
    """One question and its answer: first a topic, then a question; capitals now and then."""
    asked = questions(shown)
    # To find a shape by its kind or colour is learned last.
    weights = {"colour": 5, "where": 5, "exists": 2}
    topics = list(dict.fromkeys(topic for topic, _, _ in asked))
    topic = chooser.choices(topics, [weights.get(topic, 1) for topic in topics])[0]
    _, question, answer = chooser.choice([entry for entry in asked if entry[0] == topic])
    if chooser.random() < 0.5:
        question = question[0].upper() + question[1:]
    return topic, question, answer
