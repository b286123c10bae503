"""Time products of weights: our own kernels beside ggml's, for each type of weights.

    python benchmarks/products.py [--types q8_0 q4_k …] [--columns 1 8 512] [--family 1]
        [--output FILE.md]

One thread, by its processor time, the best of some runs in turns; GOP/s are 2 · k · m · n a second.
"ggml" is the faster of the weight as it lies in the file and of its rearranged layout, where it has
one. Weights are random bytes: ggml's kernels read weights of zeros faster. "GB/s" is the rate of
weights that our kernels read for the fewest columns; the first line has that of a plain read of
256 MiB. Tables in a file lie between markers that name the version of ggml; GGMODEL_GGML chooses
another one.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from pathlib import Path
from time import thread_time
from typing import Any

from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare import machine
from benchmarks.compare_report import page, write_between

from ggmodel.gguf_file.types import DType
from ggmodel.ml.ggml import measurements, products
from ggmodel.ml.ggml.weights import extra_buffer_types
from ggmodel.native import describe, lib

RUNS = 5


def main(arguments: list[str]) -> None:
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    served = [dtype for dtype in DType if products.serves(dtype)]
    parser.add_argument("--types", nargs="+", default=[dtype.name.lower() for dtype in served])
    parser.add_argument("--columns", nargs="+", type=int, default=[1, 4, 8, 128, 512])
    parser.add_argument("--shape", default="2048x2048", help="k x m")
    last = len(products.NAMES) - 1
    says = "at most this number of a family of instructions: " + ", ".join(
        f"{i} {name}" for i, name in enumerate(products.NAMES)
    )
    parser.add_argument("--family", type=int, default=last, choices=range(1, last + 1), help=says)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args(arguments)
    width, rows = map(int, options.shape.split("x"))
    chosen = [DType[name.upper()] for name in options.types]
    columns = sorted(options.columns)
    family = products.NAMES[lib.ggmodel_use_products(options.family)]
    said = ["…" if before == "--output" else shlex.quote(x) for before, x in
            zip(["", *arguments], arguments, strict=False)]  # fmt: skip
    facts = {
        **machine(),
        "ggml": describe()["version"],
        "our instructions": family,
        "a plain read": f"{read_rate():.1f} GB/s",
        "command": f"`python {' '.join(['benchmarks/products.py', *said])}`",
        "date": datetime.date.today().isoformat(),
    }
    console = Console(stderr=True)
    lines = [["type", "GB/s", *(f"{n}: {of}" for n in columns for of in ("own", "ggml", "÷"))]]
    for dtype in track(chosen, "measuring", console=console, transient=True):
        lines.append([dtype.name, *measured(dtype, width, rows, columns)])
    written = page(facts, lines)
    print(written)
    if options.output:
        write_between(options.output, f"products, ggml {facts['ggml']}", written)


def measured(dtype: DType, width: int, rows: int, columns: list[int]) -> list[str]:
    """GB/s of our own for the first number of columns; for each one GOP/s of our own, the best of
    ggml, and the ratio."""
    cells = list[str]()
    for n in columns:
        own, ggml = rates(dtype, width, rows, n)
        if not cells:
            cells.append(f"{own / (2 * width * n) * dtype.row_size(width):.1f}")
        cells += [f"{own:.0f}", f"{ggml:.0f}", f"{own / ggml:.2f}" if ggml else ""]
    return cells


def rates(dtype: DType, width: int, rows: int, columns: int) -> tuple[float, float]:
    """GOP/s of our own kernel, and of the best of ggml; 0 without one."""
    cpu = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    ways: list[tuple[bool, Any]] = [(True, None), (False, None)]
    ways += [(False, kind) for kind in extra_buffer_types(cpu)]
    with measurements.Bench() as bench:
        timed: list[Any] = []
        for own, kind in ways:
            op = bench.timed(kind)
            if op.multiplies(dtype, width, rows, columns, own):
                timed.append((own, op))
        for _ in range(RUNS):
            for _, op in timed:
                op.run()
        work = 2e-9 * width * rows * columns
        best = {True: 0.0, False: 0.0}
        for own, op in timed:
            best[own] = max(best[own], work / op.seconds)
    return best[True], best[False]


def read_rate() -> float:
    """GB/s of one thread that looks for a byte in memory."""
    memory = bytes([1]) * (256 << 20)
    seconds: list[float] = []
    for _ in range(RUNS):
        begin = thread_time()
        assert memory.find(b"\0") < 0
        seconds.append(thread_time() - begin)
    return 1e-9 * len(memory) / min(seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
