"""Runs programs that may kill their process: `python -m tests.fuzz.child`."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import signal
import time
import traceback
from pathlib import Path

from tests.fuzz.journal import Journal
from tests.fuzz.program import Program, Tally
from tests.fuzz.world import World

_FLUSH = 25  # programs between two reports
_RENEW = 400  # programs that share backends
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
_MEMORY = 6 << 30  # address space; what asks for more is refused, as on a full machine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int)
    parser.add_argument("--calls", type=int)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--one", action="store_true", help="only the first program")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    journal = Journal(args.journal)
    world = World(args.seed)
    tally = Tally()
    rss: list[tuple[int, int]] = []
    number, total = args.first, 0
    with open(args.report, "a") as report:
        while total < args.calls:
            journal.begin(number)
            try:
                Program(world, args.seed, number, journal, tally).run()
                _misbehave(number)
            except Exception:
                tally.leaks.append(f"program {number}\n{journal.text}{traceback.format_exc()}")
            journal.end()
            number += 1
            done = number - args.first
            if done % _FLUSH == 0 or total + tally.calls >= args.calls or args.one:
                total += tally.calls
                rss.append((total, resident()))
                line = {**vars(tally), "rss": rss[-1]}
                print(json.dumps(line), file=report, flush=True)
                tally = Tally()
            if args.one:
                break
            if done % _RENEW == 0:
                world.close()
                world.open()
        world.close()


def _misbehave(number: int) -> None:
    """Faults that the tests of the fuzzer ask for."""
    if os.environ.get("GGMODEL_FUZZ_DIE_IN") == str(number):
        os.kill(os.getpid(), signal.SIGSEGV)
    while os.environ.get("GGMODEL_FUZZ_HANG_IN") == str(number):
        time.sleep(1)


def resident() -> int:
    """Resident bytes of this process, without reusable free ones."""
    gc.collect()
    if _trim is not None:
        _trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
