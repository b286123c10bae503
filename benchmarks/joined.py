"""Time a model with ops that are joined and with each of them apart.

    python benchmarks/joined.py FILE.gguf … [--runs 5] [--output FILE.md]

One thread, by the processor time of the process: a prompt of 512 tokens and 32 decoded tokens, the
best of some runs in turns. Apart are

    ends         biases, activations, factors and residuals of products
    activations  the conversion of activations that several products read (q, k and v; gate and up)
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare import machine
from benchmarks.compare_report import page, write_between

import ggmodel
from ggmodel.ml.ggml.lowering import GGMLExecutable
from ggmodel.native import describe
from ggmodel.runner import LoadedModel

PROMPT, TOKENS = 512, 32
APART: dict[str, tuple[str, Callable[..., Any]]] = {
    "ends": ("_find_endings", lambda self: {}),
    "activations": ("_are_fixed", lambda self, node: False),
}


def seconds(model: LoadedModel, apart: str | None, chance: np.random.Generator) -> np.ndarray:
    """Processor time of a prompt, and of decoding: float64 [2]."""
    with ExitStack() as stack:
        if apart is not None:
            name, replacement = APART[apart]
            stack.enter_context(patch.object(GGMLExecutable, name, replacement))
        prompt = chance.integers(0, model.engine.vocabulary, PROMPT).tolist()
        own: Any = {"temperature": 0, "ignore_eos": True}
        began = process_time()
        model.generate(prompt, max_tokens=1, **own)
        middle = process_time()
        model.generate(prompt[:1], max_tokens=TOKENS, **own)
        return np.array([middle - began, process_time() - middle])


def measured(file: Path, runs: int) -> list[list[str]]:
    """A line for each way."""
    chance, ways = np.random.default_rng(0), [None, *APART]
    with ExitStack() as stack:
        models = [
            stack.enter_context(ggmodel.load(file, threads=1, context_length=1024)) for _ in ways
        ]
        best = np.full((len(ways), 2), np.inf)
        for run in range(runs + 1):
            for i, (way, model) in enumerate(zip(ways, models, strict=True)):
                now = seconds(model, way, chance)
                best[i] = np.minimum(best[i], now) if run else best[i]  # the first records graphs
    lines = list[list[str]]()
    for way, (prompt, decoding) in zip(ways, best, strict=True):
        gains = (f"{100 * (now / all_ - 1):+.1f} %" for now, all_ in
                 zip((prompt, decoding), best[0], strict=True))  # fmt: skip
        name = "all joined" if way is None else f"{way} apart"
        times = f"{1e3 * prompt:.0f}", f"{1e3 * decoding / TOKENS:.2f}"
        lines.append([file.stem, name, *(cell for pair in zip(times, gains, strict=True)
                                         for cell in pair)])  # fmt: skip
    return lines


def main(arguments: list[str]) -> None:
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.gguf")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args(arguments)
    more = "more than joined"
    lines = [["file", "ops", f"ms, prompt of {PROMPT}", more, "ms, a decoded token", more]]
    lines += [line for file in options.files for line in measured(file, options.runs)]
    facts = {**machine(), "ggml": describe()["version"], "date": str(datetime.date.today())}
    written = page(facts, lines)
    print(written)
    if options.output:
        write_between(options.output, "joined ops", written)


if __name__ == "__main__":
    main(sys.argv[1:])
