"""Make a model answer in JSON of a schema, or with one of several words.

    python examples/structured.py [FILE.gguf]

Needs the extra: `pip install '.[structured]'`. The embedded model only knows stories, and still
answers in valid JSON: tokens that would break the schema are never chosen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ggmodel

STORIES = Path(__file__).parent / "assets" / "stories.gguf"
NAME = {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": NAME,
        "animal": {"enum": ["fox", "bear", "rabbit", "owl"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 9},
        "friends": {"type": "array", "items": NAME, "maxItems": 2},
    },
    "required": ["name", "animal", "age", "friends"],
}


def main(file: str = str(STORIES)) -> None:
    grammar = ggmodel.Grammar.json_schema(SCHEMA)
    mood = ggmodel.Grammar.choice(["happy", "sad", "brave", "tired"])
    with ggmodel.load(file) as model:
        prompt = "Once upon a time, there was a little animal. Who was it? "
        for seed in range(3):
            answer = model.generate(prompt, grammar=grammar, seed=seed, max_tokens=200)
            hero = json.loads(answer)
            felt = model.generate(f"{hero['name']} felt ", grammar=mood, seed=1)
            print(f"{hero['name']}, {hero['animal']}, {hero['age']}, felt {felt}: {answer}")


if __name__ == "__main__":
    main(*sys.argv[1:])
