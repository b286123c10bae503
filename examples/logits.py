"""Show the likeliest tokens at every position of a prompt, and its perplexity.

python examples/logits.py [FILE.gguf] [PROMPT]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import ggmodel

STORIES = Path(__file__).parent / "assets" / "stories.gguf"


def main(file: str = str(STORIES), prompt: str = "Once upon a time, there was a little") -> None:
    with ggmodel.load(file) as model:
        ids = model.tokenize(prompt)
        logits = model.logits(ids).astype(np.float64)  # [n, vocabulary]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        surprise = 0.0
        for i, row in enumerate(p):
            best = np.argsort(-row)[:3]
            guesses = "  ".join(f"{model.detokenize([t])!r} {row[t]:.0%}" for t in best.tolist())
            print(f"{model.detokenize([ids[i]])!r:>14}  →  {guesses}")
            if i + 1 < len(ids):
                surprise -= np.log(row[ids[i + 1]])
        print(f"perplexity of the prompt: {np.exp(surprise / max(1, len(ids) - 1)):.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
