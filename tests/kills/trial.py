"""Ends writers in forked processes, and looks at what they leave."""

from __future__ import annotations

import os
import random
import resource
import select
import shutil
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ggmodel.cli.ending import finish, prepare
from tests.children import wait
from tests.kills.writers import Writer, leftovers, state

PATIENCE = 60.0  # seconds for one run; they take milliseconds
FULL = "disk full"
WAYS: Mapping[str, int | None] = {
    "kill -9": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM,
    "Ctrl-C": signal.SIGINT,
    FULL: None,
}
_STATUS = {"SIGTERM": 143, "Ctrl-C": 130, FULL: 1}


@dataclass
class Report:
    """The ends of a writer.

    Attributes:
        ends: (way, how the files were afterwards) → times.
        wrong: sentences.
        seconds: that an undisturbed run takes.
    """

    writer: str
    seconds: float = 0.0
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Trials:
    """The trials of one writer.

    Args:
        folder: is made, and holds what is written.
        seed: of the points at which it is ended.
    """

    def __init__(self, writer: Writer, folder: Path, seed: int):
        self.writer, self._folder, self._seed = writer, folder, seed
        self.report = Report(writer.name)
        folder.mkdir()
        self._reset()
        self._before = state(folder)
        writer.write(folder)  # here, so that all is imported when others are forked
        self._after = state(folder)
        seconds = []
        for _ in range(3):
            self._reset()
            began = time.monotonic()
            self._must_finish("undisturbed")
            seconds.append(time.monotonic() - began)
        self.report.seconds = statistics.median(seconds)
        self._bytes = max((folder / name).stat().st_size for name in self._after)

    def run(self, way: str, count: int) -> None:
        """Ends `count` runs, each at another point."""
        points = random.Random(f"{self._seed} {self.writer.name} {way}")
        for _ in range(count):
            self._one(way, points.uniform(0, 1.05))
        self._reset()
        self._must_finish(f"after {way}")

    def _one(self, way: str, point: float) -> None:
        self._reset()
        number = WAYS[way]
        if number is None:
            status = self._run(room=int(point * self._bytes))
        else:
            status = self._run(number, point * self.report.seconds)
        found, left = state(self._folder), leftovers(self._folder)
        said = self._described(found)
        self.report.ends[way, f"{said}, with a leftover" if left else said] += 1
        at = f"{way} at {point:.4f} (seed {self._seed})"
        expected = {0, _STATUS.get(way, 0)}
        if number is not None and (number == signal.SIGKILL or said == "new"):
            expected.add(-number)  # the command was over, and the process was not
        if status not in expected:
            self._wrong(f"{at}: status {status}, not one of {expected}")
        if said == "damaged":
            self._wrong(f"{at}: {found} is neither {self._before} nor {self._after}")
        if status == 0 and found != self._after:
            self._wrong(f"{at}: it said that all is written")
        if left and way != "kill -9":
            self._wrong(f"{at}: left {left}")
        if left or said == "some are new":
            self._must_finish(at)

    def _must_finish(self, after: str) -> None:
        """Runs the writer to its end. Files that are complete may be kept (`new`)."""
        complete = state(self._folder) == self._after or bool(leftovers(self._folder))
        status = self._run()
        if status != 0 and not (status == 1 and complete and not self.writer.old):
            self._wrong(f"{after}: the next run ended with {status}")
        if state(self._folder) != self._after or leftovers(self._folder):
            self._wrong(f"{after}: the next run left {sorted(self._folder.rglob('*'))}")

    def _described(self, found: Mapping[str, str]) -> str:
        if found == self._after:
            return "new"
        if found == self._before:
            return "old"
        each = (found.get(name) in (self._before.get(name), d) for name, d in self._after.items())
        return "some are new" if all(each) and set(found) <= set(self._after) else "damaged"

    def _wrong(self, sentence: str) -> None:
        self.report.wrong.append(f"{self.writer.name}: {sentence}")

    def _reset(self) -> None:
        """The files as they were before; leftovers stay."""
        for path in self._folder.iterdir():
            if ".part" not in path.name:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, data in self.writer.old.items():
            (self._folder / name).write_bytes(data)

    def _run(self, number: int = 0, after: float = 0.0, room: int | None = None) -> int:
        """Runs the writer in a process of its own; returns its status, negative for a signal.

        Args:
            number: a signal that it gets so many seconds after its beginning.
            room: no file may grow beyond so many bytes.
        """
        ready, begun = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(ready)
            _child(lambda: self.writer.write(self._folder), begun, room)
        os.close(begun)
        try:
            select.select([ready], [], [], PATIENCE)
            if number:
                time.sleep(after)
                os.kill(process, number)
            return wait(process, PATIENCE)
        finally:
            os.close(ready)


def _child(write: Callable[[], object], begun: int, room: int | None) -> None:
    """The forked process: writes as the command line would; never returns."""
    status = 99
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        prepare()
        if room is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

        def command() -> None:
            os.write(begun, b".")
            write()

        finish(command)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0
    finally:
        os._exit(status)
