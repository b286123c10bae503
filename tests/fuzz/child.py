"""Runs cases that may kill their process: `python -m tests.fuzz.child`, started by a parent."""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.fuzz.fuzzer import Fuzzer, Wrong, find, from_json, seeded
from tests.fuzz.journal import Journal

_REPORT = 0.5  # seconds between two reports
_SAMPLE = 1.0  # seconds between two looks at the process's memory
_OURS = (f"{os.sep}ggmodel{os.sep}", f"{os.sep}native{os.sep}", f"{os.sep}models{os.sep}")
_LONGEST = 20_000  # characters of a traceback


class Run:
    """The cases of one child, and the reports of them."""

    def __init__(self, fuzzer: Fuzzer, seed: int, journal: Journal, report: Path):
        self._fuzzer, self._seed, self._journal = fuzzer, seed, journal
        self._report = open(report, "a")  # noqa: SIM115 (open until the process ends)
        self._findings: dict[str, dict[str, Any]] = {}
        self._known: set[str] = set()
        self._cases = self._refused = 0
        self._slowest = 0.0
        self._began = self._reported = self._sampled = time.monotonic()
        self.number = -1
        threading.excepthook = lambda e: self.found(e.exc_value or e.exc_type(), "in a thread: ")
        sys.unraisablehook = lambda e: self.found(e.exc_value or e.exc_type(), "in a destructor: ")

    def one(self, number: int, case: Any = None) -> None:
        """Runs a case, which `number` stands for unless it is given."""
        self.number = number
        self._journal.begin(number)
        begin = time.monotonic()
        try:
            case = seeded(self._fuzzer, self._seed, number) if case is None else case
            self._fuzzer.run(case, self._journal.write)
        except self._fuzzer.legal:
            self._refused += 1
        except BaseException as error:  # SystemExit and its like must not end a case either
            self.found(error)
        case = None
        now = time.monotonic()
        self._slowest = max(self._slowest, now - begin)
        self._journal.end()
        self._cases += 1
        if now - self._reported > _REPORT:
            self.report()

    def found(self, error: BaseException, where: str = "") -> None:
        """Notes a finding; of those alike one is told, and the others are counted."""
        title = where + _title(error)
        known = self._findings.setdefault(title, {"title": title, "count": 0})
        known["count"] += 1
        if title not in self._known:
            self._known.add(title)
            text = "".join(traceback.format_exception(error))
            short = text if len(text) < _LONGEST else f"{text[: _LONGEST // 2]}\n…\n{text[-8000:]}"
            known |= {"number": self.number, "text": self._journal.text + short}

    def report(self) -> None:
        """Tells the parent what has happened since the last report."""
        now = self._reported = time.monotonic()
        line: dict[str, Any] = {
            "cases": self._cases,
            "refused": self._refused,
            "counts": self._fuzzer.counts,
            "slowest": self._slowest,
            "findings": list(self._findings.values()),
        }
        if now - self._sampled > _SAMPLE:
            line["sample"] = [now - self._began, *self._fuzzer.measured()]
            self._sampled = time.monotonic()
        print(json.dumps(line), file=self._report, flush=True)
        self._findings.clear()
        self._fuzzer.counts.clear()
        self._cases = self._refused = 0

    def close(self) -> None:
        """Samples and frees the fuzzer, and reports for the last time."""
        self._sampled = -_SAMPLE
        self.report()
        try:
            self._fuzzer.close()
            gc.collect()  # destructors may raise
        except BaseException as error:
            self.found(error, "at the end: ")
        self.report()


def _title(error: BaseException) -> str:
    """Words that are the same for errors from the same place."""
    if isinstance(error, Wrong):
        return str(error.args[0])
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if _is_ours(f.filename)] or frames
    places = [f"{Path(f.filename).name}:{f.name}" for f in ours[-2:]]
    return f"{type(error).__name__} at {' > '.join(places)}"


def _is_ours(file: str) -> bool:
    return "site-packages" not in file and any(part in file for part in _OURS)


def limit_memory(more: int) -> None:
    """Refuses this process address space beyond what it has."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + more, size + more))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fuzzer")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--cases", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--case", type=Path, help="a file with the only case")
    args = parser.parse_args()
    parent = os.getppid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    (args.folder / "files").mkdir()
    fuzzer = find(args.fuzzer)(args.folder / "files")
    fuzzer.open()
    run = Run(fuzzer, args.seed, Journal(args.folder / "journal"), args.folder / "report")
    limit_memory(fuzzer.memory)
    end = time.monotonic() + args.seconds
    if args.case is not None:
        run.one(args.first, from_json(args.case.read_text()))
    else:
        for number in range(args.first, args.first + args.cases * args.step, args.step):
            if time.monotonic() > end or os.getppid() != parent:
                break
            run.one(number)
    run.close()


if __name__ == "__main__":
    main()
