"""Find the layer that knows a colour, by patching (causal tracing).

    python examples/patching.py [OUT.svg]

Two pictures differ in the colour of a circle. The model is asked for it in one of them, while what
a layer gives for some tokens is replaced by what it gave for the other picture. Where that turns
the answer into the other colour, the layer has the colour at those tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import ggmodel
from ggmodel.workbench.heat import heat_map
from ggmodel.workbench.inside import Grid, token_texts

SHAPES = Path(__file__).parent / "assets" / "shapes.gguf"
QUESTION = "what colour is the circle?"
COLOURS = {"red": (214, 40, 40), "blue": (37, 99, 235)}


def circle(colour: tuple[int, int, int]) -> Image.Image:
    image = Image.new("RGB", (224, 224), (246, 246, 240))
    ImageDraw.Draw(image).ellipse((82, 82, 142, 142), fill=colour)
    return image


def main(out: str = "colour.svg") -> None:
    with ggmodel.load(SHAPES, kv_type="f32") as model:
        conversations = [
            [{"role": "user", "content": QUESTION, "images": [circle(colour)]}]
            for colour in COLOURS.values()
        ]
        prompts = [model.chat_prompt(messages) for messages in conversations]
        answers = [model.generate(prompt, temperature=0, max_tokens=20) for prompt in prompts]
        for colour, answer in zip(COLOURS, answers, strict=True):
            print(f"{colour}: {answer}")
        red, blue = (answer.tokens for answer in answers)
        pairs = enumerate(zip(red, blue, strict=False))
        same = next(i for i, (a, b) in pairs if a != b)  # the answers begin alike
        prompts = [[*prompt, *red[:same]] for prompt in prompts]

        with model.capture(*model.residual) as seen:
            of_red = model.logits(prompts[0])[-1]
        states, of_blue = dict(seen), model.logits(prompts[1])[-1]

        def share(logits: np.ndarray) -> float:
            """How far an answer has moved from blue (0) to red (1)."""
            here, there, now = (x[red[same]] - x[blue[same]] for x in (of_blue, of_red, logits))
            return float((now - here) / (there - here))

        groups = grouped(token_texts(model, prompts[1]))
        moved = [
            [
                share(patched(model, prompts[1], layer, states[layer], places))
                for places in groups.values()
            ]
            for layer in model.residual
        ]
        layers = model.residual
    names = [name for name, _ in groups]
    grid = Grid(layers, names, np.array(moved, np.float32))
    Path(out).write_text(heat_map(grid, "share of the answer that turned red"), "utf-8")
    picture, at_last = names.index("the picture"), [row[-1] for row in moved]
    for layer, row in zip(layers, moved, strict=True):
        print(f"{layer}: {row[picture]:.0%} red by the picture's tokens, {row[-1]:.0%} by the last")
    some, most = (next(i for i, share in enumerate(at_last) if share > x) for x in (0.1, 0.5))
    print(
        f"{layers[some]} brings the colour to the last token, {layers[most]} most of it: see {out}"
    )


def grouped(texts: list[str]) -> dict[tuple[str, int], list[int]]:
    """(text, place) → tokens: each alone, but for those of the picture."""
    groups: dict[tuple[str, int], list[int]] = {}
    for i, text in enumerate(texts):
        key = ("the picture", 0) if text == "▢" else (text, i)
        groups.setdefault(key, []).append(i)
    return groups


def patched(
    model: Any, prompt: Any, layer: str, states: np.ndarray, places: list[int]
) -> np.ndarray:
    """The last logits of a prompt, with some rows of a layer's result replaced."""

    def replace(rows: np.ndarray) -> np.ndarray:
        rows[places] = states[places]
        return rows

    with model.patch({layer: replace}):
        return model.logits(prompt)[-1]


if __name__ == "__main__":
    main(*sys.argv[1:])
