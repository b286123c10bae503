"""Embed sentences and compare them: similar texts have similar rows of numbers.

python examples/embed.py [FILE.gguf [SENTENCE ...]]
"""

from __future__ import annotations

import sys
from pathlib import Path

import ggmodel

STORIES = Path(__file__).parent / "assets" / "stories.gguf"
SENTENCES = (
    "A small fox lived in the forest.",
    "A little fox lived in the deep forest.",
    "The owl was wise and knew many things.",
    "The owl was old and knew many stories.",
    "They baked bread and ate it by the sea.",
)


def main(file: str = str(STORIES), *sentences: str) -> None:
    texts = sentences or SENTENCES
    with ggmodel.load(file) as model:
        rows = model.embed(texts, normalize=True)  # float32 [sentences, width]
    # The mean is common to all texts and says nothing about one of them.
    rows -= rows.mean(axis=0)
    rows /= (rows**2).sum(axis=1, keepdims=True) ** 0.5 + 1e-12
    print("cosine of the angle between sentences, their mean taken off\n")
    for i, (text, row) in enumerate(zip(texts, rows @ rows.T, strict=True)):
        print(f"{i}  " + "  ".join(f"{x:5.2f}" for x in row) + f"   {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
