"""Complete many prompts at once, with a progress bar.

    python examples/batch.py [FILE.gguf [COUNT]]

Without arguments the embedded model begins a thousand stories. `parallel` sets how many are
computed together; a pool of threads submits them.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import track

import ggmodel

STORIES = Path(__file__).parent / "assets" / "stories.gguf"
WHO = "fox bear rabbit owl mouse cat duck frog hen crab".split()
WHERE = "by the sea;in the forest;on a hill;in a small village;near the river".split(";")


def main(file: str = str(STORIES), count: str = "1000") -> None:
    prompts = [
        f"One day, a little {WHO[i % len(WHO)]} {WHERE[i // len(WHO) % len(WHERE)]}"
        for i in range(int(count))
    ]
    with ggmodel.load(file, parallel=8, context_length=64) as model, ThreadPoolExecutor(16) as pool:

        def complete(i: int) -> ggmodel.Completion:
            return model.generate(prompts[i], max_tokens=12, seed=i)

        begun = time.perf_counter()
        bar = Console(stderr=True)
        answers = list(
            track(
                pool.map(complete, range(len(prompts))),
                "completing",
                len(prompts),
                console=bar,
                transient=True,
                disable=not bar.is_terminal,
            )
        )
        seconds = time.perf_counter() - begun
    for prompt, answer in zip(prompts[:5], answers, strict=False):
        print(f"{prompt}{answer} …")
    tokens = sum(len(answer.tokens) for answer in answers)
    print(f"{len(answers)} prompts, {tokens} tokens in {seconds:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
