"""Receipts of answers that were computed in company, replayed by another process.

`python -m tests.deterministic.replays` writes three of each model of the schedules, and replays
them.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ggmodel
from ggmodel.errors import Unsupported
from ggmodel.runner import LoadedModel, Receipt
from tests.deterministic.schedules import CACHES, LENGTH, NAMES, questions, settings, source_for

TOGETHER = 3
"""Receipts of a loaded model, of answers that share batches."""
COUNT = TOGETHER * len(NAMES)
"""Receipts by default: of each model once."""
SAMPLERS = (
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1.1, "top_k": 7},
    {"temperature": 0.9, "top_p": 0.6, "min_p": 0.02},
    {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.3},
)


@contextmanager
def loaded(name: str, seed: int, turn: str) -> Iterator[tuple[LoadedModel, random.Random]]:
    """A random model of that name, with options that change no bit drawn anew each turn."""
    chance = random.Random(f"{name} {seed}")
    with TemporaryDirectory() as folder:
        source, cache = source_for(name, chance, folder), chance.choice(CACHES)
        varied = settings(random.Random(f"{name} {seed} {turn}"), folder)

        def load(kv_type: str) -> LoadedModel:
            fixed = {"kv_type": kv_type, "deterministic": True, "context_length": LENGTH}
            return ggmodel.load(source, **fixed, **varied)

        try:
            model = load(cache)
        except Unsupported:  # blocks do not fit its heads
            model = load("f16")
        with model:
            yield model, chance


def write(name: str, seed: int, folder: Path) -> None:
    """Receipts of answers of one model, as "0.json", "1.json", …"""
    with loaded(name, seed, "write") as (model, chance):
        pool = questions(chance, model.engine.vocabulary)
        sampler: Any = chance.choice(SAMPLERS)
        prompts = [chance.choice(pool)[0] for _ in range(TOGETHER)]
        answers = model.batch(prompts, max_tokens=12, seed=chance.randrange(9), **sampler)
        for i, answer in enumerate(answers):
            assert answer.receipt is not None
            answer.receipt.save(folder / f"{i}.json")


def replay(name: str, seed: int, folder: Path) -> tuple[int, int]:
    """How many receipts there are, and how many are replayed with all bits, draws and digests."""
    files = sorted(folder.glob("*.json"))
    same = 0
    with loaded(name, seed, "replay") as (model, _):
        for file in files:
            outcome = model.replay(Receipt.read(file))
            same += outcome.same and not outcome.differences
            if not outcome.same or outcome.differences:
                print(f"{name}, seed {seed}, {file.name}: {outcome}", flush=True)
    return len(files), same


def jobs(count: int) -> Iterator[tuple[str, int, str]]:
    """Models for that many receipts: name, seed, folder's name."""
    for i in range(-(-count // TOGETHER)):
        yield NAMES[i % len(NAMES)], i // len(NAMES), str(i)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="receipts")
    parser.add_argument("--written", type=Path, help="replay the receipts of this folder")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    if options.written is None:
        with TemporaryDirectory() as folder:
            for name, seed, at in jobs(options.count):
                Path(folder, at).mkdir()
                write(name, seed, Path(folder, at))
            command = [sys.executable, "-m", "tests.deterministic.replays", "--written", folder]
            sys.exit(subprocess.call([*command, "--count", str(options.count)]))
    expected = total = same = 0
    for name, seed, at in jobs(options.count):
        some, equal = replay(name, seed, options.written / at)
        expected, total, same = expected + TOGETHER, total + some, same + equal
    print(f"{total} receipts, {same} replayed the same, {time.monotonic() - began:.0f} s")
    sys.exit(not 0 < expected == total == same)


if __name__ == "__main__":
    main(sys.argv[1:])
