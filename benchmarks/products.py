"""Time products of weights: our own kernels beside ggml's, for each type of weights.

    python benchmarks/products.py [--types q8_0 q4_k …] [--columns 1 8 512] [--family 1]

One thread, by its processor time, the best of some runs in turns; GOP/s are 2 · k · m · n a second.
"stored" is ggml with the weight as it lies in the file, "rearranged" with its faster layout, where
it has one. Weights and activations are zeros: no kernel looks at values. "GB/s" is the rate of
weights that our kernels read; the first line has that of a plain read of 256 MiB.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from ggmodel.gguf_file.types import DType
from ggmodel.ml.ggml import measurements, products
from ggmodel.ml.ggml.weights import extra_buffer_types
from ggmodel.native import describe, lib

RUNS = 5


def main() -> None:
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    served = [dtype for dtype in DType if products.serves(dtype)]
    parser.add_argument("--types", nargs="+", default=[dtype.name.lower() for dtype in served])
    parser.add_argument("--columns", nargs="+", type=int, default=[1, 4, 8, 32, 128, 512])
    parser.add_argument("--shape", default="2048x2048", help="k x m")
    last = len(products.NAMES) - 1
    says = "at most this number of a family of instructions: " + ", ".join(
        f"{i} {name}" for i, name in enumerate(products.NAMES)
    )
    parser.add_argument("--family", type=int, default=last, choices=range(1, last + 1), help=says)
    options = parser.parse_args()
    width, rows = map(int, options.shape.split("x"))
    chosen = [DType[name.upper()] for name in options.types]
    console = Console()
    family = lib.ggmodel_use_products(options.family)
    about = describe()
    read = f"read: {read_rate():.1f} GB/s"
    console.print(f"ggml {about['version']}, own kernels: {products.NAMES[family]}, {read}")
    table = Table("type", "columns", "own", "stored", "rearranged", "own ÷ best of ggml", "GB/s")
    for dtype in chosen:
        for columns in options.columns:
            table.add_row(dtype.name, str(columns), *measured(dtype, width, rows, columns))
    console.print(table)


def measured(dtype: DType, width: int, rows: int, columns: int) -> list[str]:
    """GOP/s of each way as text, the ratio, and GB/s of our own."""
    cpu = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    ways: list[tuple[bool, Any]] = [(True, None), (False, None)]
    ways += [(False, kind) for kind in extra_buffer_types(cpu)]
    with measurements.Bench() as bench:
        timed: list[Any] = []
        for own, kind in ways:
            op = bench.timed(kind)
            timed.append(op if op.multiplies(dtype, width, rows, columns, own) else None)
        for _ in range(RUNS):
            for op in timed:
                if op is not None:
                    op.run()
        work = 2e-9 * width * rows * columns
        rates = [work / op.seconds if op is not None else 0 for op in timed]
    rearranged = max(rates[2:], default=0)
    ratio = rates[0] / max(rates[1], rearranged)
    read = rates[0] / (2 * width * columns) * dtype.row_size(width)
    texts = (f"{rate:.0f}" if rate else "" for rate in (*rates[:2], rearranged))
    return [*texts, f"{ratio:.2f}", f"{read:.1f}"]


def read_rate() -> float:
    """GB/s of one thread that looks for a byte in memory."""
    memory = bytes([1]) * (256 << 20)
    seconds: list[float] = []
    for _ in range(RUNS):
        begin = time.thread_time()
        assert memory.find(b"\0") < 0
        seconds.append(time.thread_time() - begin)
    return 1e-9 * len(memory) / min(seconds)


if __name__ == "__main__":
    main()
