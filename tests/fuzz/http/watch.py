"""Tickers beside a server, and the rule that they hold it to (docs/security.md)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO

from tests.children import import_path
from tests.fuzz.http.ticker import KINDS, WORK
from tests.fuzz.parent import ROOT

LATE = 0.25  # seconds that others may delay what computes nothing
_SILENT = 60.0  # seconds after which a ticker that reports nothing is late
_REMEMBERED = 20_000  # reports
_AROUND = 0.3  # seconds around a delay in which the machine's slowness is looked at


@dataclass(frozen=True)
class Tick:
    """Something that took from `begin` so many seconds."""

    name: str
    begin: float
    seconds: float

    @property
    def end(self) -> float:
        return self.begin + self.seconds


class Watch:
    """Runs the tickers.

    Args:
        step: seconds of the longest scheduled step of another request.
    """

    def __init__(self, port: int, step: float):
        self._step = step
        self._ticks: dict[str, list[Tick]] = {kind: [] for kind in KINDS}
        self._lock = threading.Lock()
        self._processes = [self._start(kind, port) for kind in KINDS]

    def _start(self, kind: str, port: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.fuzz.http.ticker", kind, str(port)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": import_path()},
        )
        assert process.stdout is not None
        threading.Thread(target=self._read, args=(kind, process.stdout), daemon=True).start()
        return process

    def _read(self, kind: str, lines: IO[str]) -> None:
        for line in lines:
            name, begin, seconds = line.split()
            with self._lock:
                self._ticks[kind].append(Tick(name, float(begin), float(seconds)))

    def late(self, since: float) -> list[Tick]:
        """All that took longer than the rule allows, and began since a time. Waits until each
        ticker has reported once more, so that nothing under way is left out."""
        now = time.monotonic()
        while not all(self._is_beyond(kind, now) for kind in KINDS):
            if time.monotonic() - now > _SILENT:
                silent = [kind for kind in KINDS if not self._is_beyond(kind, now)]
                return [Tick(f"{kind} (no answer)", now, _SILENT) for kind in silent]
            time.sleep(0.01)
        with self._lock:
            controls = list(self._ticks["control"])
            ticks = [*self._ticks["quick"], *self._ticks["chat"]]
            for reports in self._ticks.values():
                del reports[:-_REMEMBERED]
        return [tick for tick in ticks if tick.begin >= since and self._is_late(tick, controls)]

    def _is_beyond(self, kind: str, moment: float) -> bool:
        with self._lock:
            ticks = self._ticks[kind]
            return bool(ticks) and ticks[-1].end > moment

    def _is_late(self, tick: Tick, controls: list[Tick]) -> bool:
        if ":" in tick.name:  # a status that is no success
            return True
        if tick.name == "chat":  # waits for its turn
            return False
        allowed = LATE + (self._step if tick.name == "token" else 0.0)
        if tick.seconds <= allowed:
            return False
        beside = [
            one.seconds / WORK
            for one in controls
            if one.end > tick.begin - _AROUND and one.begin < tick.end + _AROUND
        ]
        slower = sum(beside) / len(beside) if beside else 1.0
        return tick.seconds / slower > allowed

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
