"""The time of attention in windows, beside the dense products of the same layer of a tower.

    python benchmarks/windows.py [--rows 70] [--columns 72] [--window 8] [--width 1280] [--mask]

One layer, as large as one of Qwen2.5-VL's. `--mask` also times one mask over all rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from ggmodel import Context, Tensor, nn
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import DType, new_backend

HEADS, REPEATS = 16, 3


def timed(work: Callable[[Context], Tensor]) -> float:
    """The shortest of some runs, in seconds."""
    backend = new_backend(MemorySource({"general.architecture": "none"}, {}))
    with backend, backend.new_context() as ctx:
        with ctx.trace():
            y = work(ctx)
        ctx.forward(y)
        found = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            ctx.compute(y)
            found.append(time.perf_counter() - start)
        return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("rows", 70), ("columns", 72), ("window", 8), ("width", 1280)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--mask", action="store_true")
    given = parser.parse_args()
    n, width, random = given.rows * given.columns, given.width, np.random.default_rng(1)
    _, lengths = nn.vision_windows(given.rows, given.columns, given.window)
    x = random.standard_normal((n, width), np.float32)
    matrices = [random.standard_normal((width, width), np.float32) for _ in range(4)]
    matrices += [random.standard_normal((4 * width, width), np.float32) / 64]
    matrices += [random.standard_normal((width, 4 * width), np.float32) / 64]

    def layer(ctx: Context, attend: Callable[[Tensor, Tensor, Tensor], Tensor] | None) -> Tensor:
        rows = ctx.input().from_floats(x)
        q, k, v, out, up, down = (ctx.input().from_floats(matrix) for matrix in matrices)
        heads = [m.mulmat(rows).reshape(width // HEADS, HEADS, n) for m in (q, k, v)]
        y = heads[0] + heads[1] + heads[2] if attend is None else attend(*heads)
        y = rows + out.mulmat(y.reshape(width, n))
        return y + down.mulmat(up.mulmat(y).gelu())

    scale = (width // HEADS) ** -0.5
    dense = timed(lambda ctx: layer(ctx, None))
    windows = timed(
        lambda ctx: layer(ctx, lambda q, k, v: nn.attention_in_blocks(q, k, v, lengths, scale))
    )
    print(f"{n:,} patches in {len(lengths)} windows; a layer of width {width}")
    times = f"{dense:.3f} s; with windows {windows:.3f} s, {windows / dense:.2f} ×"
    print(f"dense products alone {times}")
    if given.mask:
        block = np.repeat(np.arange(len(lengths)), lengths)
        hidden = np.where(block[:, None] == block, 0, -np.inf).astype(np.float32)

        def masked(ctx: Context) -> Tensor:
            mask = ctx.input().from_floats(hidden).cast(DType.F16)
            return layer(
                ctx,
                lambda q, k, v: q.scaled_dot_product_attention(k, v, mask, scale=scale),
            )

        whole = timed(masked)
        print(f"with one mask of {n:,} × {n:,}: {whole:.3f} s, {whole / dense:.2f} ×")


if __name__ == "__main__":
    main()
