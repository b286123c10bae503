"""Complete many prompts at once, with a progress bar.

    python examples/batch.py [FILE.gguf [COUNT]]

Without arguments the embedded model begins a thousand stories, as many at a time as the model was
loaded with (`parallel`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import ggmodel

STORIES = Path(__file__).parent / "assets" / "stories.gguf"
WHO = "fox bear rabbit owl mouse cat duck frog hen crab".split()
WHERE = "by the sea;in the forest;on a hill;in a small village;near the river".split(";")


def main(file: str = str(STORIES), count: str = "1000") -> None:
    prompts = [
        f"One day, a little {WHO[i % len(WHO)]} {WHERE[i // len(WHO) % len(WHERE)]}"
        for i in range(int(count))
    ]
    console = Console(stderr=True)
    with (
        ggmodel.load(file, parallel=8, context_length=64) as model,
        Progress(console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("completing", total=1.0)
        begun = time.perf_counter()
        answers = model.batch(
            prompts, max_tokens=12, progress=lambda share: bar.update(task, completed=share)
        )
        seconds = time.perf_counter() - begun
    for prompt, answer in zip(prompts[:5], answers, strict=False):
        print(f"{prompt}{answer} …")
    tokens = sum(len(answer.tokens) for answer in answers)
    print(f"{len(answers)} prompts, {tokens} tokens in {seconds:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
