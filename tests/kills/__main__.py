"""Ends everything that writes files at random points, and looks at the files.

`python -m tests.kills --count 200 --seed 1`, which `make kills` runs, ends each writer 200 times by
kill -9, and a third as often by SIGTERM, by Ctrl-C and by a full disk. Afterwards each file is the
old one or the new one, whole. Only kill -9 may leave something else, which the next run removes.
Prints what was found; the exit status is 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # it forks

from tests.kills.trial import WAYS, Report, Trials
from tests.kills.writers import writers


def main() -> None:
    arguments = _arguments()
    print(f"seed {arguments.seed}", flush=True)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for i, writer in enumerate(writers(Path(folder))):
            if arguments.writer not in writer.name:
                continue
            trials = Trials(writer, Path(folder, f"writer-{i}"), arguments.seed)
            for way in WAYS:
                trials.run(way, arguments.count // (1 if way == "kill -9" else 3))
            _print(trials.report)
            wrong += trials.report.wrong
    print("\n".join(wrong) or "nothing was lost")
    sys.exit(bool(wrong))


def _print(report: Report) -> None:
    for way in WAYS:
        ends = sorted((n, how) for (with_, how), n in report.ends.items() if with_ == way)
        said = ", ".join(f"{n} {how}" for n, how in reversed(ends))
        print(f"{report.writer:24} {report.seconds * 1e3:5.0f} ms  {way:10} {said}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--count", type=int, default=200, help="runs of each writer that end by kill -9"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the points")
    parser.add_argument("--writer", default="", help="only those with this in their names")
    return parser.parse_args()


if __name__ == "__main__":
    main()
