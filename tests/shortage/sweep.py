"""Loads and asks a model under every limit of address space: `python -m tests.shortage.sweep`.

Each limit is tried in a process of its own. It must end with the answer or with an error of
ggmodel, and answer as usual once the limit is gone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.shortage.child import MOMENTS

_CHILD = Path(__file__).parent / "child.py"
_TIMEOUT = 120  # seconds
_ENOUGH = 3  # successes in a row
_LATER = 1 << 18  # bytes


@dataclass(frozen=True)
class Trial:
    """A limit of `nbytes`, and how it ended: "ok", an error of ggmodel, or what else happened."""

    nbytes: int
    status: int
    outcome: str

    @property
    def lived(self) -> bool:
        return self.status == 0

    @property
    def answered(self) -> bool:
        return self.lived and self.outcome == "ok"


def trial(moment: str, nbytes: int) -> Trial:
    command = [sys.executable, str(_CHILD), moment, str(nbytes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return Trial(nbytes, -1, "it hangs")
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return Trial(nbytes, done.returncode, lines[-1] if lines else "no output")


def sweep(moment: str, step: float, most: int = 1000) -> Iterator[Trial]:
    """Tries growing limits until they suffice: from 100 MiB on, or from what the process has at a
    later moment.

    Args:
        moment: one of `MOMENTS`.
        step: percent from one to the next; at later moments, quarters of a MiB.
        most: limits that are tried at most.
    """
    nbytes, answered = (100 << 20) * (moment == "start"), 0
    for _ in range(most):
        yield (found := trial(moment, int(nbytes)))
        answered = answered + 1 if found.answered else 0
        if answered == _ENOUGH:
            return
        nbytes += step * (nbytes / 100 if moment == "start" else _LATER)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moment", choices=MOMENTS, action="append")
    parser.add_argument("--step", type=float, default=1, help="percent, or quarters of a MiB")
    chosen = parser.parse_args()
    dead = tried = 0
    for moment in chosen.moment or MOMENTS:
        for found in sweep(moment, chosen.step):
            tried, dead = tried + 1, dead + (not found.lived)
            what = found.outcome if found.lived else f"DEAD ({found.status}): {found.outcome}"
            print(f"{moment:6} {found.nbytes / 2**20:7.1f} MiB  {what:.120}", flush=True)
    print(f"{tried} limits, {dead} dead processes")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
