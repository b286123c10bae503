"""Fuzzing: `python -m tests.fuzz --minutes 10 --seed 1`, or `make fuzz MINUTES=10 SEED=1`.

Runs all fuzzers one after the other, in child processes under limits of memory and time, and
prints a table. Each finding is written into a file that `--replay` runs again. With any the exit
status is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.fuzz import report, reproducer
from tests.fuzz.parent import ROOT, Children, Result
from tests.fuzz.registry import named, shares


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tests.fuzz", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for all fuzzers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="at most this many of each fuzzer")
    parser.add_argument("--only", action="append", default=[], metavar="FUZZER")
    parser.add_argument("--without", action="append", default=[], metavar="FUZZER")
    parser.add_argument("--jobs", type=int, default=1, help="child processes at a time")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "fuzz", help="of findings")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="only the case of this file")
    parser.add_argument("--history", type=int, default=0, help="cases to run before that one")
    args = parser.parse_args(arguments)
    if args.replay is not None:
        return _replay(args.replay, args.history)
    try:
        fuzzers = named(args.only, args.without)
    except LookupError as error:
        parser.error(str(error))
    results, files = [], []
    for fuzzer, seconds in zip(fuzzers, shares(fuzzers, args.minutes * 60), strict=True):
        with report.progress(fuzzer, seconds) as show:
            cases = 1 << 40 if args.cases is None else args.cases
            children = Children(
                fuzzer, args.seed, seconds=seconds, cases=cases, jobs=args.jobs, progress=show
            )
            result = children.run()
        found = result.findings.values()
        results.append(result)
        files.append([reproducer.save(args.folder, fuzzer, args.seed, one) for one in found])
    return _tell(results, files)


def _tell(results: list[Result], files: list[list[Path]]) -> int:
    console = Console()
    for result, paths in zip(results, files, strict=True):
        report.show_findings(console, result, paths)
    wide = Console(width=None if console.is_terminal else 120)
    wide.print(report.table(results))
    return int(any(result.findings for result in results))


def _replay(path: Path, history: int) -> int:
    result = reproducer.replay(path, history)
    console = Console()
    report.show_findings(console, result, [path] * len(result.findings))
    if not result.findings:
        more = "" if history else "; with --history 1000 it runs behind the cases before it"
        console.print(f"{path}: the case ends well{more}", markup=False, soft_wrap=True)
    return int(bool(result.findings))


if __name__ == "__main__":
    sys.exit(main())
