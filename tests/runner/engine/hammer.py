"""Many processes and random prompts on one prefix store: is any answer another one?

`python -m tests.runner.engine.hammer --processes 8 --prompts 100000` asks each prompt of a model
with the store, and of one without, and compares all bits of their logits. Prompts are ways in a
tree, so that they begin alike; the store is too small for them, so that it is emptied all the time.
Different `--seed`s take other ways, of which some meet; about half of all prompts are new ones.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ggmodel
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import source_of
from tests.deterministic.schedules import Recorder
from tests.golden.text import golden_of
from tests.runner.engine.stored import small_blocks

NAMES = ("llama/plain_gqa", "mistral/window", "jamba/published")
_LONGEST, _PIECE, _BRANCHES = 80, 11, 3


@dataclass
class Result:
    """Counts.

    Attributes:
        found: prompts of which the store had a part. wrong: answers with other bits.
    """

    prompts: int = 0
    found: int = 0
    wrong: int = 0


def prompt_of(chance: random.Random) -> list[int]:
    """A way in a tree whose nodes are a few tokens each, ended anywhere."""
    node, prompt = 0, list[int]()
    while len(prompt) < _LONGEST and chance.random() < 0.9:
        node = _BRANCHES * node + 1 + chance.randrange(_BRANCHES)
        piece = random.Random(node)
        prompt += [piece.randrange(50) for _ in range(_PIECE)]
    return prompt[: len(prompt) - chance.randrange(_PIECE)] or [1, 2, 3]


def one_process(
    folder: Path, name: str, seed: int, prompts: int, limit: int, seconds: int
) -> Result:
    """Asks so many prompts, or as many as the time allows."""
    end = time.monotonic() + seconds
    source, result, chance = source_of(golden_of(name)), Result(), random.Random(seed)
    options = {"context_length": 96, "deterministic": True, "threads": 1}
    with (
        ggmodel.load(
            source, prefix_store=folder, prefix_store_size=limit / 2**30, **options
        ) as storing,
        ggmodel.load(source, **options) as plain,
    ):
        store = small_blocks(storing)
        right: dict[tuple[int, ...], bytes] = {}
        for _ in range(prompts):
            if time.monotonic() > end:
                break
            prompt = prompt_of(chance)
            if tuple(prompt) not in right:
                right[tuple(prompt)] = logits_of(plain, prompt, seed)
            result.prompts += 1
            result.wrong += logits_of(storing, prompt, seed) != right[tuple(prompt)]
        result.found = store.found
    return result


def logits_of(model: LoadedModel, prompt: list[int], seed: int) -> bytes:
    """A digest of all logits of an answer of two tokens."""
    sampler = Recorder(seed)
    model.generate(prompt, max_tokens=2, sampler=sampler)
    return hashlib.blake2b(np.stack(sampler.rows).tobytes()).digest()


def hammered(
    folder: Path, processes: int, prompts: int, limit: int, seconds: int = 86400, first: int = 0
) -> Result:
    """The sum of what all processes count.

    Args:
        prompts: of all together.
        limit: bytes of the store.
        seconds: after which each process ends with the prompts that it has asked.
        first: seed of the first process; each has one more than that before.
    """
    children = []
    for seed in range(first, first + processes):
        count = prompts // processes
        name = NAMES[seed // 2 % len(NAMES)]  # two of each, at least
        arguments = [str(folder), name, *map(str, (seed, count, limit, seconds))]
        command = [sys.executable, "-m", "tests.runner.engine.hammer", "--one"]
        children.append(subprocess.Popen([*command, *arguments], stdout=-1, text=True))
    total = Result()
    for child in children:
        said, _ = child.communicate()
        assert child.returncode == 0
        counts = [int(number) for number in said.split()]
        total.prompts, total.found, total.wrong = (
            a + b for a, b in zip((total.prompts, total.found, total.wrong), counts, strict=True)
        )
    return total


def main() -> None:
    """Prints what all processes counted."""
    if sys.argv[1:2] == ["--one"]:
        folder, name, *numbers = sys.argv[2:]
        seed, prompts, limit, seconds = map(int, numbers)
        one = one_process(Path(folder), name, seed, prompts, limit, seconds)
        print(one.prompts, one.found, one.wrong)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--minutes", type=int, default=1440, help="at most")
    parser.add_argument("--seed", type=int, default=0, help="of the first process")
    parser.add_argument("--mib", type=float, default=8.0, help="size of the store")
    given, begun = parser.parse_args(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        limit = int(given.mib * 2**20)
        counts = given.processes, given.prompts, limit, 60 * given.minutes, given.seed
        total = hammered(Path(folder), *counts)
    seconds = time.monotonic() - begun
    print(
        f"{total.prompts:,} prompts in {given.processes} processes, {seconds:,.0f} s: the store "
        f"had a part of {total.found:,}, and {total.wrong} answers have other bits"
    )


if __name__ == "__main__":
    main()
