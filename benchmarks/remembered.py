"""Speed of requests beside cells of others: remembered requests, and sequences of one batch.

    python benchmarks/remembered.py FILE.gguf [--other CHECKOUT] [--pairs 5] [--remembered 4000]

    short    100 tokens of a short request among three remembered ones of 4,000 tokens, as a ratio
             to the same request in a model that remembers nothing; both in turns in one process
    eight    48 tokens each of eight sequences behind 512 tokens of their own; with --other as a
             ratio to another checkout, in turns in fresh processes

Speed is tokens a second of processor time, on one thread: other load on the machine matters less
than to time by the clock. Medians over the pairs, and the range. Another checkout needs a compiled
binding (`native/_ggml_*.so`).
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
from pathlib import Path
from typing import Any

SEQUENCES, BEHIND, TOKENS = 8, 512, 48


def prompt(model: Any, n: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, model.tokenizer.size - 1) for _ in range(n)]


def endless(model: Any) -> dict[str, Any]:
    """Options of requests that go on to `max_tokens`."""
    return {"temperature": 0, "logit_bias": dict.fromkeys(model.tokenizer.eog, -100.0)}


def short(file: str, pairs: int, remembered: int) -> list[float]:
    """The speed among remembered requests by that alone, a ratio a pair."""
    import ggmodel

    options: dict[str, Any] = {
        "parallel": 4,
        "context_length": remembered + 96,
        "threads": 1,
    }
    with ggmodel.load(file, **options) as alone, ggmodel.load(file, **options) as among:
        for seed in range(3):
            among.generate(prompt(among, remembered, seed), max_tokens=1, **endless(among))

        def rate(model: Any) -> float:
            pieces = model.stream(prompt(model, 8, 9), max_tokens=100, **endless(model))
            next(pieces)  # behind the prompt
            began = time.process_time()
            return sum(1 for _ in pieces) / (time.process_time() - began)

        for model in (alone, among):  # records graphs
            rate(model)
        found = []
        for pair in range(pairs):
            order = (alone, among) if pair % 2 else (among, alone)
            rates = {model: rate(model) for model in order}
            found.append(rates[among] / rates[alone])
        return found


def eight(file: str) -> float:
    """Tokens a second of all sequences together."""
    import ggmodel

    with ggmodel.load(file, parallel=SEQUENCES, context_length=1024, threads=1) as model:
        streams = [
            model.stream(prompt(model, BEHIND, seed), max_tokens=TOKENS + 16, **endless(model))
            for seed in range(SEQUENCES)
        ]
        for _ in range(2):  # from here on all of them have one token a batch
            for one in streams:
                next(one)
        began = time.process_time()
        taken = sum(next(one, None) is not None for _ in range(TOKENS) for one in streams)
        return taken / (time.process_time() - began)


def in_process(checkout: Path, file: str) -> float:
    """`eight` in a fresh process with another checkout's ggmodel."""
    here = Path(__file__).resolve().parent
    code = "import sys, remembered; print(remembered.eight(sys.argv[1]))"
    path = os.pathsep.join((str(checkout.resolve() / "sdk"), str(here)))
    done = subprocess.run(
        [sys.executable, "-c", code, file],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def line(name: str, found: list[float]) -> None:
    print(f"{name:8} {statistics.median(found):.2f}  ({min(found):.2f} to {max(found):.2f})")


def main() -> None:
    """Prints a line a row."""
    parser = argparse.ArgumentParser(description="Speed of requests beside cells of others.")
    parser.add_argument("file", help="a GGUF file")
    parser.add_argument("--other", type=Path, help="another checkout")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--remembered", type=int, default=4000, help="tokens of each")
    options = parser.parse_args()
    here = Path(__file__).resolve().parents[1]
    line("short", short(options.file, options.pairs, options.remembered))
    if options.other is None:
        print(f"eight    {in_process(here, options.file):.1f} tokens/s")
        return
    found = []
    for pair in range(options.pairs):
        order = (here, options.other) if pair % 2 else (options.other, here)
        rates = {path: in_process(path, options.file) for path in order}
        found.append(rates[here] / rates[options.other])
    line("eight", found)


if __name__ == "__main__":
    main()
