"""Continue a prompt, token by token.

    python examples/generate.py [FILE.gguf] [PROMPT]

Without arguments the embedded model tells a story.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ggmodel

STORIES = Path(__file__).parent / "assets" / "stories.gguf"


def main(file: str = str(STORIES), prompt: str = "Once upon a time") -> None:
    with ggmodel.load(file) as model:
        print(prompt, end="", flush=True)
        for piece in model.stream(prompt, temperature=0.7, seed=1, max_tokens=200):
            print(piece, end="", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
