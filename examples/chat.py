"""Talk with a model: two questions, the second with the first and its answer as history.

    python examples/chat.py [FILE.gguf] [QUESTION] [QUESTION]

Without arguments the embedded model tells two stories.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ggmodel

STORIES = Path(__file__).parent / "assets" / "stories.gguf"


def main(
    file: str = str(STORIES),
    first: str = "Tell me a story about a small fox named Pip.",
    second: str = "Tell me a story about an old owl.",
) -> None:
    messages = []
    with ggmodel.load(file) as model:
        for question in (first, second):
            print(f"> {question}")
            messages.append({"role": "user", "content": question})
            answer = ""
            for piece in model.chat(messages, stream=True, temperature=0.7, seed=5, max_tokens=250):
                print(piece, end="", flush=True)
                answer += piece
            print("\n")
            messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main(*sys.argv[1:])
