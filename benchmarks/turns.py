"""Compare two checkouts of ggmodel in turns, on one model.

    python benchmarks/turns.py OTHER_CHECKOUT FILE.gguf [--pairs 12] [--threads 2]

Each pair runs this checkout and the other one after each other, in fresh processes and alternating
order. Rows are the speed of this checkout divided by that of the other: the median over the pairs,
and the range. Both need a compiled binding (`native/_ggml_*.so`), and only the public Python API
that both have is used.

    generate    64 tokens of a whole answer
    stream      64 tokens, piece by piece
    first       1 / seconds to the first piece of 16 tokens
    streams     32 tokens each of 8 streams that one thread takes in turn
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STREAMS = 8


def measure(file: str, threads: int) -> dict[str, float]:
    """Tokens a second, or 1 / seconds, by row; medians of a few runs after one that is not
    counted."""
    import ggmodel

    rng = random.Random(0)
    with ggmodel.load(file, parallel=STREAMS, context_length=1024, threads=threads) as model:
        assert model.tokenizer is not None
        never_ends = dict.fromkeys(model.tokenizer.eog, -100.0)
        options: dict[str, Any] = {"temperature": 0, "logit_bias": never_ends}

        def prompt(n: int) -> list[int]:
            return [rng.randrange(3, model.tokenizer.size - 1) for _ in range(n)]  # type: ignore[union-attr]

        def generate() -> int:
            return len(model.generate(prompt(2), max_tokens=64, **options).tokens)

        def stream() -> int:
            return sum(1 for _ in model.stream(prompt(2), max_tokens=64, **options))

        def first() -> float:
            began = time.perf_counter()
            pieces = model.stream(prompt(16), max_tokens=2, **options)
            next(pieces)
            seconds = time.perf_counter() - began
            list(pieces)  # nothing is left to compute when the next one begins
            return 1 / seconds

        def timed(run: Callable[[], int]) -> Callable[[], float]:
            def rate() -> float:
                began = time.perf_counter()
                return run() / (time.perf_counter() - began)

            return rate

        def median(rate: Callable[[], float], times: int) -> float:
            return statistics.median([rate() for _ in range(times + 1)][1:])

        def streams() -> float:
            open_streams = [
                model.stream(prompt(2), max_tokens=33, **options) for _ in range(STREAMS)
            ]
            for one in open_streams:
                next(one)
            began = time.perf_counter()
            taken = sum(1 for _ in range(32) for one in open_streams if next(one, None) is not None)
            return taken / (time.perf_counter() - began)

        return {
            "generate": median(timed(generate), 5),
            "stream": median(timed(stream), 5),
            "first": median(first, 7),
            "streams": median(streams, 3),
        }


def main() -> None:
    """Runs the pairs and prints a line a row."""
    parser = argparse.ArgumentParser(description="Compare two checkouts in turns.")
    parser.add_argument("other", type=Path, help="another checkout")
    parser.add_argument("file", help="a GGUF file")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    here = Path(__file__).resolve().parents[1]
    code = (
        "import sys, turns; print(turns.json.dumps(turns.measure(sys.argv[1], int(sys.argv[2]))))"
    )

    def run(checkout: Path) -> dict[str, float]:
        path = os.pathsep.join((str(checkout.resolve() / "sdk"), str(here / "benchmarks")))
        done = subprocess.run(
            [sys.executable, "-c", code, options.file, str(options.threads)],
            env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    ratios: dict[str, list[float]] = {}
    for pair in range(options.pairs):
        order = (here, options.other) if pair % 2 else (options.other, here)
        rates = {checkout: run(checkout) for checkout in order}
        for row, rate in rates[here].items():
            ratios.setdefault(row, []).append(rate / rates[options.other][row])
        print(f"pair {pair + 1} of {options.pairs}", file=sys.stderr)
    for row, found in ratios.items():
        print(f"{row:10} {statistics.median(found):.3f}  ({min(found):.3f} to {max(found):.3f})")


if __name__ == "__main__":
    main()
