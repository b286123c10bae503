"""Tokens a second of several streams: threads in this process beside the frames of a runner.

    python benchmarks/streams.py [FILE.gguf [STREAMS [TOKENS]]]

Without a file, on a llama of 135 million random parameters in Q8_0. Both sides have the model in
memory and take turns; each of the 8 streams asks for 96 tokens. The median of the ratios of nine
pairs counts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import ggmodel
from ggmodel.serve.requests import Finished, Request
from ggmodel.serve.runners.engines import GgmodelRunner

PAIRS = 9


def in_threads(model: ggmodel.LoadedModel, prompts: list[list[int]], options: Any) -> float:
    """Tokens a second."""
    counts = [0] * len(prompts)

    def consume(i: int) -> None:
        counts[i] = sum(1 for _ in model.stream(prompts[i], **options))

    threads = [threading.Thread(target=consume, args=(i,)) for i in range(len(prompts))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


async def in_runner(runner: GgmodelRunner, prompts: list[list[int]], options: Any) -> float:
    """Tokens a second."""

    async def consume(prompt: list[int]) -> int:
        count = 0
        async for event in runner.generate(Request(prompt, options)):
            count = event.completion_tokens if isinstance(event, Finished) else count
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*map(consume, prompts))
    return sum(counts) / (time.perf_counter() - began)


async def compare(file: str, streams: int, tokens: int) -> None:
    load: dict[str, Any] = {"parallel": streams, "context_length": tokens + 64, "gpu_layers": 0}
    runner = await GgmodelRunner.start(file, load)
    with ggmodel.load(file, **load) as model:
        ends = {} if model.tokenizer is None else dict.fromkeys(model.tokenizer.eog, float("-inf"))
        options = {"max_tokens": tokens, "temperature": 0.0, "logit_bias": ends}
        prompts = [[5 + i, 6, 7, 8 + i] for i in range(streams)]
        rates: list[tuple[float, float]] = []
        for turn in range(PAIRS + 1):
            sides = [
                lambda: asyncio.to_thread(in_threads, model, prompts, options),
                lambda: in_runner(runner, prompts, options),
            ]
            order = (0, 1) if turn % 2 else (1, 0)
            found = {side: await sides[side]() for side in order}
            if turn:  # the first brings the weights into memory
                rates.append((found[0], found[1]))
    await runner.close()
    ratio = median(theirs / ours for ours, theirs in rates)
    print(
        f"{Path(file).name}, {streams} streams of {tokens} tokens: threads "
        f"{median(r for r, _ in rates):,.1f} tokens/s, runner {median(r for _, r in rates):,.1f}, "
        f"ratio {ratio:.3f}"
    )


def main(file: str | None = None, streams: str = "8", tokens: str = "96") -> None:
    if file is None:
        from make_model import SHAPES, make

        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "smollm-135m-q8_0.gguf"
            make(made, "smollm-135m", SHAPES["smollm-135m"], "q8_0")
            main(str(made), streams, tokens)
        return
    asyncio.run(compare(file, int(streams), int(tokens)))


if __name__ == "__main__":
    main(*sys.argv[1:])
