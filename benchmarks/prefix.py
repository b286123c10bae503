"""Time to the first token of a second question about the same text.

    python benchmarks/prefix.py [FILE.gguf [PREFIX [QUESTION]]]

Without a file, on a llama of 135 million random parameters in Q8_0. Two requests share PREFIX
tokens (2,000) and have QUESTION tokens (20) each; the first computes all of them, the second finds
the prefix in the cache. Medians of five pairs with different prefixes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np

import ggmodel

PAIRS = 5


def first_token(model: ggmodel.LoadedModel, prompt: list[int]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    with closing(model.stream(prompt, max_tokens=1, temperature=0)) as pieces:
        next(pieces)
        return (time.perf_counter() - began) * 1e3


def main(file: str | None = None, prefix: str = "2000", question: str = "20") -> None:
    if file is None:
        from make_model import SHAPES, make

        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "smollm-135m-q8_0.gguf"
            make(made, "smollm-135m", SHAPES["smollm-135m"], "q8_0")
            main(str(made), prefix, question)
        return
    shared, own = int(prefix), int(question)
    random = np.random.default_rng(0)
    with ggmodel.load(file, context_length=shared + own + 1, gpu_layers=0) as model:

        def tokens(count: int) -> list[int]:
            return random.integers(0, model.engine.vocabulary, count).tolist()

        first_token(model, tokens(own))  # brings the weights into memory
        firsts, seconds = [], []
        for _ in range(PAIRS):
            text = tokens(shared)
            firsts.append(first_token(model, text + tokens(own)))
            seconds.append(first_token(model, text + tokens(own)))
    first, second = float(np.median(firsts)), float(np.median(seconds))
    print(
        f"{Path(file).name}, {shared} + {own} tokens: first token of the first question after "
        f"{first:,.1f} ms, of the second after {second:,.1f} ms, ratio {second / first:.4f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
