"""Random programs against the tensor interface, in child processes that they may kill.

`python -m tests.fuzz.run --calls 100000 --seed 1` is the long run; `--program N` repeats one
program and prints its calls. A call with arguments of the types it asks for gives a tensor or an
error of the `ggmodel.Error` family. All else counts as found: a signal, an abort, a program
that does not end, another exception, a result that is not as the op's rule said.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.journal import Journal
from tests.fuzz.program import Tally

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 20.0  # seconds for one program; they take milliseconds
START = 60.0  # seconds more until the first one


@dataclass
class Report:
    """The sum of the children's work.

    Attributes:
        deaths: of children: how, in which program, with which calls.
        rss: of each child: (calls made so far, bytes resident), many times.
    """

    tally: Tally = field(default_factory=Tally)
    deaths: list[str] = field(default_factory=list)
    rss: list[list[tuple[int, int]]] = field(default_factory=list)

    @property
    def growth(self) -> int:
        """Bytes that the longest-lived child grew by in its last three quarters."""
        longest = max(self.rss, key=len, default=[])
        later = longest[len(longest) // 4 :]
        return later[-1][1] - later[0][1] if later else 0


def fuzz(
    calls: int,
    seed: int = 1,
    first: int = 0,
    *,
    one: bool = False,
    limit: int = 1000,
    progress: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Runs programs until `calls` calls were made, or `limit` of them were fatal."""
    report = Report()
    while report.tally.calls < calls and len(report.deaths) < limit:
        first = _child(report, calls - report.tally.calls, seed, first, one, progress)
        if one:
            break
    return report


def _child(
    report: Report,
    calls: int,
    seed: int,
    first: int,
    one: bool,
    progress: Callable[[Report], None],
) -> int:
    """Runs a child to its end; returns the number of the next program."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        place = Path(folder)
        journal = Journal(place / "journal", create=True)
        (place / "report").touch()
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.child"]
        command += ["--seed", str(seed), "--first", str(first), "--calls", str(calls)]
        command += ["--journal", str(place / "journal"), "--report", str(place / "report")]
        report.rss.append([])
        path = os.pathsep.join([str(ROOT / "sdk"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        with open(place / "output", "w+b") as output, open(place / "report") as lines:
            child = subprocess.Popen(
                command + ["--one"] * one,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            hung = _watch(child, journal, lambda: _gather(report, lines, progress))
            _gather(report, lines, progress)
            output.seek(0)
            said = output.read().decode(errors="replace")
        program, text = journal.program, journal.text
        journal.close()
    if child.returncode or hung:
        code = child.returncode
        how = "hung" if hung else signal.Signals(-code).name if code < 0 else f"exit status {code}"
        report.deaths.append(f"program {program} of seed {seed}: {how}\n{text}{said[-3000:]}")
        if program < 0:
            raise RuntimeError(f"the child does not start:\n{said}")
    return program + 1


def _watch(child: subprocess.Popen[bytes], journal: Journal, gather: Callable[[], None]) -> bool:
    """Waits for the child; kills it and returns True if it makes no progress."""
    done, since = -1, time.monotonic() + START
    while True:
        try:
            child.wait(0.2)
            return False
        except subprocess.TimeoutExpired:
            gather()
        if journal.program >= 0 and journal.done != done:
            done, since = journal.done, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            child.kill()
            child.wait()
            return True


def _gather(report: Report, lines: Iterable[str], progress: Callable[[Report], None]) -> None:
    for line in lines:
        entry = json.loads(line)
        report.rss[-1].append(tuple(entry.pop("rss")))
        for name in ("done", "refused"):
            entry[name] = Counter(entry[name])
        report.tally.add(Tally(**entry))
    progress(report)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", type=int, help="run this one only and print its calls")
    parser.add_argument("--first", type=int, default=0, help="the program to begin with")
    parser.add_argument("--limit", type=int, default=20, help="deaths after which to give up")
    args = parser.parse_args()
    if args.program is not None:
        report = fuzz(1, args.seed, args.program, one=True)
    else:
        report = _with_progress(args.calls, args.seed, args.first, args.limit)
    _print(report)
    sys.exit(bool(report.deaths or report.tally.leaks))


def _with_progress(calls: int, seed: int, first: int, limit: int) -> Report:
    from rich.console import Console
    from rich.progress import Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("calls", total=calls)

        def show(report: Report) -> None:
            found = len(report.deaths) + len(report.tally.leaks)
            bar.update(task, completed=report.tally.calls, description=f"calls, {found} found")

        return fuzz(calls, seed, first, limit=limit, progress=show)


def _print(report: Report) -> None:
    t = report.tally
    for text in (*report.deaths, *t.leaks):
        print(text, "\n")
    print(
        f"{t.calls:,} calls in {t.programs:,} programs, of which {t.computed:,} computed; "
        f"{len(report.deaths)} died, {len(t.leaks)} ended in another exception"
    )
    for title, counts in (("computed", t.done), ("refused", t.refused)):
        print(f"{title}:", ", ".join(f"{op} {n}" for op, n in sorted(counts.items())))
    for samples in report.rss:
        if samples:
            step = max(1, len(samples) // 8)
            print("resident MB:", ", ".join(f"{n:,}: {b >> 20}" for n, b in samples[::step]))


if __name__ == "__main__":
    main()
