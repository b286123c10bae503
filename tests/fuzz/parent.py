"""Runs fuzzers in child processes, and gathers what they find."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.children import import_path
from tests.fuzz.fuzzer import Case, Fuzzer, path_of, to_json
from tests.fuzz.journal import Journal

ROOT = Path(__file__).resolve().parents[2]
START = 120.0  # seconds until the first case
END = 60.0  # seconds from the last case to the end of the process
ENOUGH = 25  # deaths of children after which a fuzzer is given up
_FRAME = re.compile(r'File "([^"]+)", line \d+ in (\S+)')


@dataclass
class Finding:
    """Something that must not happen, and the case in which it happened first.

    Attributes:
        title: findings alike have the same.
        first, step: the numbers of the cases that the child had run before.
    """

    title: str
    number: int
    text: str
    first: int
    step: int
    count: int = 1


@dataclass
class Result:
    """The sum of the work of a fuzzer's children.

    Attributes:
        refused: cases that ended with a legal error.
        counts: the fuzzer's, see `Fuzzer.counts`.
        seconds: from the first start of a child to the last end.
        slowest: seconds of the slowest case that ended.
        findings: by title.
        samples: of each child: (seconds, resident bytes, open files, threads), many times.
    """

    fuzzer: type[Fuzzer]
    seed: int
    cases: int = 0
    refused: int = 0
    deaths: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    samples: list[list[list[float]]] = field(default_factory=list)

    def add(self, found: Finding) -> None:
        """Adds a finding, or counts it with those alike."""
        known = self.findings.setdefault(found.title, found)
        if known is not found:
            known.count += found.count

    @property
    def growth(self) -> int:
        """Resident bytes that the longest-lived child grew by in its last three quarters."""
        longest = max(self.samples, key=len, default=[])
        later = longest[len(longest) // 4 :]
        return int(later[-1][1] - later[0][1]) if later else 0


class Children:
    """Runs cases of one fuzzer in children, a few at a time.

    Args:
        seconds: after which no case begins. cases: the most that are run.
        jobs: children at a time. The cases are the same for any number.
        patience: seconds for one case; None takes the fuzzer's.
    """

    def __init__(
        self,
        fuzzer: type[Fuzzer],
        seed: int,
        *,
        seconds: float = 3600.0,
        cases: int = 1 << 40,
        jobs: int = 1,
        patience: float | None = None,
        progress: Callable[[Result], None] = lambda _: None,
    ):
        self.result = Result(fuzzer, seed)
        self._end = time.monotonic() + seconds
        self._cases, self._jobs, self._progress = cases, jobs, progress
        self._patience = fuzzer.patience if patience is None else patience
        self._lock = threading.Lock()
        self._stopped = False

    def run(self) -> Result:
        """Runs to the end.

        Raises:
            RuntimeError: a child does not get as far as its first case.
        """
        begin = time.monotonic()
        with ThreadPoolExecutor(self._jobs, "fuzz") as pool:
            try:
                for done in [pool.submit(self._job, j) for j in range(self._jobs)]:
                    done.result()
            finally:
                self._stopped = True
        self.result.seconds = time.monotonic() - begin
        return self.result

    def _job(self, job: int) -> None:
        """The cases job, job + jobs, job + 2 · jobs and so on."""
        left, first = len(range(job, self._cases, self._jobs)), job
        while left and not self._over:
            done = self._child(first, left)
            first, left = first + done * self._jobs, left - done

    @property
    def _over(self) -> bool:
        late = time.monotonic() >= self._end
        return self._stopped or late or self.result.deaths >= ENOUGH

    def one(self, case: Case, number: int) -> Result:
        """Runs this case alone."""
        self._child(number, 1, case)
        return self.result

    def some(self, first: int, count: int) -> Result:
        """Runs `count` cases from a number on, in one child that steps as one of several does."""
        self._child(first, count)
        return self.result

    def _child(self, first: int, cases: int, case: Case = None) -> int:
        """Runs a child to its end; returns the number of its cases."""
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=shared) as name:
            folder = Path(name)
            journal = Journal(folder / "journal", create=True)
            (folder / "report").touch()
            command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-m"]
            command += ["tests.fuzz.child", path_of(self.result.fuzzer), "--folder", name]
            seconds = max(self._end - time.monotonic(), 1.0)
            numbers = {"seed": self.result.seed, "first": first, "step": self._jobs}
            for key, value in (numbers | {"cases": cases, "seconds": seconds}).items():
                command += [f"--{key}", str(value)]
            if case is not None:
                (folder / "case").write_text(to_json(case))
                command += ["--case", str(folder / "case")]
            with open(folder / "output", "w+b") as output, open(folder / "report") as report:
                told = _Told(report, first)
                self.result.samples.append(told.samples)
                process = _start(command, output)
                try:
                    how = self._watch(process, journal, lambda: self._gather(told))
                finally:
                    _kill(process)
                self._gather(told)
                output.seek(0)
                said = output.read().decode(errors="replace")
            begun = journal.state[1]
            if how:
                self._note_death(how, journal, first, said)
            journal.close()
        with self._lock:
            self.result.cases += begun - told.cases
        return begun if how else cases

    def _watch(
        self, process: subprocess.Popen[bytes], journal: Journal, gather: Callable[[], None]
    ) -> str:
        """Waits for a child's end; returns how it ended, "" if well."""
        seen, since = journal.state, time.monotonic()
        while not self._stopped:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(0.1)
                if not code:
                    return ""
                return signal.Signals(-code).name if code < 0 else f"exit status {code}"
            gather()
            if journal.state != seen:
                seen, since = journal.state, time.monotonic()
            _, begun, done = seen
            patience = self._patience if begun > done else END if begun else START
            if time.monotonic() - since > patience:
                process.send_signal(signal.SIGABRT)  # has the stacks of all threads printed
                with suppress(subprocess.TimeoutExpired):
                    process.wait(2)
                return "hung"
        return ""

    def _note_death(self, how: str, journal: Journal, first: int, said: str) -> None:
        number = journal.state[0]
        if number < 0:
            raise RuntimeError(f"a child of {self.result.fuzzer.name} does not start:\n{said}")
        frames = [f for f in _FRAME.findall(said) if str(ROOT) in f[0]]
        outer = [f"{Path(file).name}:{name}" for file, name in frames if "/tests/" not in file]
        title = f"{how} at {' < '.join(outer[:2]) or 'no frame of ggmodel'}"
        text = f"{journal.text}{said[-8000:]}"
        with self._lock:
            self.result.deaths += 1
            self.result.add(Finding(title, number, text, first, self._jobs))

    def _gather(self, told: _Told) -> None:
        """Takes in what a child has reported."""
        result = self.result
        with self._lock:
            for report in told.more():
                result.cases += report["cases"]
                result.refused += report["refused"]
                result.counts.update(report["counts"])
                result.slowest = max(result.slowest, report["slowest"])
                for found in report["findings"]:
                    # Only the first of those alike in a child has a text.
                    found = {"number": told.first, "text": ""} | found
                    result.add(Finding(**found, first=told.first, step=self._jobs))
            self._progress(result)


class _Told:
    """The reports of one child, a line each, which it is still writing.

    Attributes:
        first: number of the child's first case.
        cases: as reported so far.
    """

    def __init__(self, file: IO[str], first: int):
        self.first, self.cases = first, 0
        self.samples: list[list[float]] = []
        self._file, self._rest = file, ""

    def more(self) -> Iterator[dict[str, Any]]:
        """The reports since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            report = json.loads(line)
            self.cases += report["cases"]
            if "sample" in report:
                self.samples.append(report["sample"])
            yield report


def _start(command: list[str], output: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": import_path(),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        },
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # so that its own children end with it
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
