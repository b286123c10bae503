"""Ask a model about pictures.

    python examples/describe_image.py [FILE.gguf] [IMAGE] [QUESTION ...]

Without arguments the embedded model, which knows coloured shapes, describes scene.png. A separate
vision projector (mmproj) is found beside the model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ggmodel

ASSETS = Path(__file__).parent / "assets"
QUESTIONS = ("what is in the picture?", "how many shapes are there?", "where is the circle?")


def main(
    file: str = str(ASSETS / "shapes.gguf"),
    image: str = str(ASSETS / "scene.png"),
    *questions: str,
) -> None:
    with ggmodel.load(file) as model:
        for question in questions or QUESTIONS:
            # The picture is encoded once for all questions.
            messages = [{"role": "user", "content": question, "images": [image]}]
            print(f"> {question}")
            print(model.chat(messages, temperature=0, max_tokens=100))


if __name__ == "__main__":
    main(*sys.argv[1:])
