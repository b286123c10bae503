"""A long run of mixed requests, which must not grow: `python -m tests.fuzz.soak --minutes 60`.

One child process answers random schedules of requests, chats, questions about pictures, answers
held to a schema, embeddings and logits, and loads and closes models. With `--serve` a real server
answers over HTTP, and its runner processes are killed and stopped. Resident memory, open files and
threads are recorded; the slope is that of the last two thirds of the time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from rich.console import Console

from tests.fuzz import report, reproducer
from tests.fuzz.http.served import Served
from tests.fuzz.mixed import Mixed
from tests.fuzz.parent import ROOT, Children, Result

STEEPEST = 8.0  # MiB an hour that an allocator may need for ever new fragments


def slope(samples: list[list[float]]) -> float:
    """MiB an hour that resident memory grew by in the last two thirds, by least squares."""
    later = np.array([s[:2] for s in samples if s[0] >= samples[-1][0] / 3])
    if len(later) < 3:
        return 0.0
    return float(np.polyfit(later[:, 0] / 3600, later[:, 1] / 2**20, 1)[0])


def tell(console: Console, result: Result) -> bool:
    """Prints the course and the verdict; returns whether nothing grew."""
    samples = result.samples[-1]
    for i in np.linspace(0, len(samples) - 1, min(len(samples), 13)).astype(int):
        seconds, resident, files, threads = samples[i]
        console.print(
            f"{seconds / 60:6.1f} min  {resident / 2**20:7.1f} MiB  {files:.0f} files  "
            f"{threads:.0f} threads"
        )
    steep = slope(samples)
    half = samples[len(samples) // 3 :]
    flat = steep <= STEEPEST or samples[-1][0] < 600  # less time says nothing about an hour
    for column, what in ((2, "files"), (3, "threads")):
        least = min(s[column] for s in half[: max(1, len(half) // 4)])
        last = min(s[column] for s in half[-max(1, len(half) // 4) :])
        flat = flat and last <= least
        console.print(f"{what}: {least:.0f} at first, {last:.0f} in the end")
    console.print(f"resident memory: {steep:+.1f} MiB an hour")
    return flat


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help="a real server, with kills")
    args = parser.parse_args()
    seconds = args.minutes * 60
    fuzzer = Served if args.serve else Mixed
    with report.progress(fuzzer, seconds) as show:
        result = Children(fuzzer, args.seed, seconds=seconds, progress=show).run()
    console = Console()
    folder = Path(ROOT / ".cache" / "fuzz")
    files = [reproducer.save(folder, fuzzer, args.seed, f) for f in result.findings.values()]
    report.show_findings(console, result, files)
    flat = tell(console, result)
    console.print(report.table([result]))
    return int(bool(result.findings) or not flat)


if __name__ == "__main__":
    sys.exit(main())
