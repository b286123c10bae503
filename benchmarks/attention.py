"""Time attention: the kernel of our own beside ggml's flash attention.

    python benchmarks/attention.py [--types f16 q8_0] [--queries 1 16 512] [--cells 2048]
        [--output FILE.md]

One thread, by its processor time, the best of some runs in turns: ggml's time divided by ours.
Keys and values are zeros, in "heads" of queries, of keys, and numbers of each; ggml's op may read
values that were converted to F32, where that is faster.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare import machine
from benchmarks.compare_report import page, write_between

from ggmodel.ml.ggml import attention, measurements
from ggmodel.native import describe, ffi, lib

SHAPES = ((9, 3, 64), (12, 12, 64), (32, 8, 128), (16, 16, 128), (4, 1, 256))
TYPES = {
    "f16": lib.GGML_TYPE_F16,
    "f32": lib.GGML_TYPE_F32,
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q4_0": lib.GGML_TYPE_Q4_0,
}
NAMES = ("plain C", "NEON" if platform.machine() in ("aarch64", "arm64") else "AVX2", "AVX-512")
"""Instructions by their number."""
RUNS = 4


def main() -> None:
    text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("--types", nargs="+", default=["f16", "q8_0"], choices=TYPES)
    parser.add_argument("--queries", nargs="+", type=int, default=[1, 16, 512])
    parser.add_argument("--cells", type=int, default=2048)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    pairs = [(name, queries) for name in options.types for queries in options.queries]
    lines = [["heads, of keys, numbers of each", *(f"{name}: {n}" for name, n in pairs)]]
    for shape in SHAPES:
        cells = list[str]()
        for name, queries in pairs:
            own, theirs = measured(TYPES[name], *shape, queries, options.cells)
            cells.append(f"{theirs / own:.1f}")
        lines.append([", ".join(map(str, shape)), *cells])
    facts = {
        **machine(),
        "ggml": describe()["version"],
        "our instructions": NAMES[attention.instructions],
        "cells": str(options.cells),
        "date": str(datetime.date.today()),
    }
    written = page(facts, lines)
    print(written)
    if options.output:
        write_between(options.output, "attention", written)


def measured(
    kind: int, heads: int, kv_heads: int, width: int, queries: int, cells: int
) -> tuple[float, float]:
    """Seconds of our kernel, and of the faster way of ggml."""
    with measurements.Bench() as bench:
        ours, *theirs = timed = [bench.timed() for _ in range(3)]
        for i, one in enumerate(timed):
            c = one.ctx
            q = lib.ggml_new_tensor_4d(c, lib.GGML_TYPE_F32, width, queries, heads, 1)
            k, v = (lib.ggml_new_tensor_4d(c, kind, width, cells, kv_heads, 1) for _ in range(2))
            one.computes(_op(c, q, k, v, i))
        for _ in range(RUNS):
            for one in timed:
                one.run()
        return ours.seconds, min(one.seconds for one in theirs)


def _op(c: Any, q: Any, k: Any, v: Any, way: int) -> Any:
    none = ffi.NULL
    if way == 0:
        attrs = {"scale": 1.0, "softcap": 0.0}
        return attention.Attention(c, 1, False).attend((q, k, v, none, none, none), attrs)
    mask = lib.ggml_new_tensor_4d(c, lib.GGML_TYPE_F16, k.ne[1], q.ne[1], 1, 1)
    if way == 2:
        v = lib.ggml_cast(c, v, lib.GGML_TYPE_F32)
    t = lib.ggml_flash_attn_ext(c, q, k, v, mask, 1.0, 0.0, 0.0)
    lib.ggml_flash_attn_ext_set_prec(t, lib.GGML_PREC_F32)
    return t


if __name__ == "__main__":
    main()
