"""A real server, asked by several clients what nobody should ask."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

from tests.fuzz.fuzzer import Fuzzer, Note, Wrong, usage
from tests.fuzz.http.bodies import ASSETS, MODELS
from tests.fuzz.http.client import Exchange, exchanges
from tests.fuzz.http.requests import request
from tests.fuzz.http.watch import Tick, Watch
from tests.serving import Running

_CONTEXT = 256
_OPTIONS = (
    *("--context-length", str(_CONTEXT), "--max-tokens", "16", "--threads", "1", "--parallel", "4"),
    *("--keep-alive", "-1", "--any-name", "--manage", "--gpu-layers", "0"),
)
_BAD_LOG = re.compile(r"Traceback|never retrieved|was destroyed|a bug of the server|Exception in")
_LOG = 3000  # characters of the log in a finding
_SURELY = 3.0  # seconds that no busy machine alone makes others wait
_SETTLED = 10.0  # seconds in which what ended requests held is free
_WARM = 3  # cases after which files and threads are counted
_MORE = (512 << 20, 48, 48)  # bytes, files and threads that pools and allocators may still take


class Http(Fuzzer):
    """Rounds of requests by eight clients, beside tickers that must not wait."""

    name = "http"
    unit = "requests"
    weight = 2.0
    patience = 300.0
    memory = 4 << 30
    legal = ()
    requests: ClassVar[int] = 100  # of a case
    module: ClassVar[str] = "ggmodel"
    models: ClassVar[dict[str, str]] = MODELS

    def open(self) -> None:
        home = self.folder / str(len(list(self.folder.iterdir())))
        home.mkdir()
        variables: dict[str, Any] = {
            "HOME": home,
            "XDG_DATA_HOME": home / "data",
            "XDG_CACHE_HOME": home / "cache",
        }
        variables |= {"HF_HOME": home / "hf", "OLLAMA_MODELS": home / "ollama"}
        # Answers with texts of 48 MB that are kept are no growth, but look like it.
        variables["GGMODEL_LIMIT_SERVE_STORED_BYTES"] = str(16 << 20)
        self._log = home / "log"
        with open(self._log, "wb") as log:
            self.server = Running(
                *(f"{name}={ASSETS / file}" for name, file in self.models.items()),
                *(option for name in self.models for option in ("--pin", name)),
                *_OPTIONS,
                module=self.module,
                log=log,
                session=False,  # ends with this process's
                HF_HUB_OFFLINE="1",
                **variables,
            )
        if not self.server.url:
            raise RuntimeError(self._log.read_text())
        self.port = int(self.server.url.rpartition(":")[2])
        self._read = 0  # bytes of the log
        self._cases = 0
        step = self._step()
        self.remember_runners()
        self._watch = Watch(self.port, step)
        self._before: tuple[int, ...] = self.measured()

    def _step(self) -> float:
        """Seconds of a step that computes as many tokens of a prompt as the context has."""
        longest = 0.0
        for model in self.models.keys() - {"ears"}:  # which has no room for so many
            for number in range(3):
                body = {"model": model, "prompt": [3 + number] * (_CONTEXT - 2), "max_tokens": 1}
                begin = time.monotonic()
                self.ask("/v1/completions", body)
                longest = max(longest, time.monotonic() - begin) if number else longest
        return longest

    def ask(self, path: str, body: Any = None) -> bytes:
        """The answer of the server to a good request."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.server.url + path, data)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.read()

    def make(self, random: Random) -> list[dict[str, Any]]:
        return [request(random) for _ in range(self.requests)]

    def run(self, case: list[dict[str, Any]], note: Note) -> None:
        if self._has_ended():  # in a case before
            self.close()
            self.open()
        begin = time.monotonic()
        made = asyncio.run(exchanges(self.port, case))
        self.counts["requests"] += len(made)
        for one in made:
            for status in one.statuses:
                self.counts[f"{status // 100}xx"] += 1
        self.check_round(made, begin)
        self.check_growth()

    def check_round(self, made: list[Exchange], begin: float) -> None:
        """Looks at the server after it has answered these.

        Raises:
            Wrong: something happened that must not.
        """
        if self._has_ended():
            raise Wrong("the server ended", self.read_log(), _text(made[-20:]))
        for one in made:
            self.check_answer(one)
        told = self.read_log()
        if word := _BAD_LOG.search(told):
            last = _last_line(told, word.start())
            raise Wrong(f"in the log: {last}", told[-_LOG:], _text(made))
        late = self._watch.late(begin)
        if late:
            self._raise_late(made, late)
        before = self._runners
        self.remember_runners()
        if not before <= self._runners:
            raise Wrong("a runner ended", told[-_LOG:], _text(made))

    def _has_ended(self) -> bool:
        return self.server.process.poll() is not None

    def check_answer(self, one: Exchange) -> None:
        """Whether a request has been answered as it should.

        Raises:
            Wrong: it has not.
        """
        if bad := [status for status in one.statuses if status >= 500]:
            raise Wrong(
                f"status {bad[0]}: {_kind(one)}: {_message(one)}", str(one), one.data[-500:]
            )
        if one.request["whole"] and not one.complete:
            raise Wrong(f"no answer: {_kind(one)}", str(one))

    def _raise_late(self, made: list[Exchange], late: list[Tick]) -> None:
        """Finds out which request of those under way is slow for others when it is alone. A delay
        that comes again neither so, nor when all are sent again, was the machine's.
        """
        worst = max(late, key=lambda tick: tick.seconds)
        suspects = [one for one in made if one.begin < worst.end and one.end > worst.begin]
        for one in sorted(suspects, key=lambda one: one.begin - one.end):
            if self._is_late_again([one]):
                title = f"{worst.name} waits for {_kind(one)}"
                raise Wrong(title, f"{worst.seconds:.2f} s", str(one))
        if worst.seconds > _SURELY or self._is_late_again(made):
            raise Wrong(f"{worst.name} waits", f"{worst.seconds:.2f} s", _text(suspects))
        self.counts["late once"] += 1

    def _is_late_again(self, made: list[Exchange]) -> bool:
        begin = time.monotonic()
        asyncio.run(exchanges(self.port, [one.request for one in made]))
        return bool(self._watch.late(begin))

    def remember_runners(self) -> None:
        """Takes note of the runner processes, which must live on."""
        self._runners = set(self.server.runners())

    def read_log(self) -> str:
        """The log since the last call."""
        with open(self._log, "rb") as log:
            log.seek(self._read)
            told = log.read()
        self._read += len(told)
        return told.decode(errors="replace")

    def check_growth(self) -> None:
        """Whether all that requests hold is free again.

        Raises:
            Wrong: it is not.
        """
        end = time.monotonic() + _SETTLED
        while True:
            now = self.measured()
            more = [n - b > m for n, b, m in zip(now, self._before, _MORE, strict=True)]
            busy = self._busy()
            if not busy and not any(more):
                break
            if time.monotonic() > end:
                before, self._before = self._before, now
                what = "a request that does not end" if busy else "growth"
                raise Wrong(what, busy, before, now)
            time.sleep(0.05)
        if self._cases <= _WARM:
            self._before = tuple(map(max, now, self._before))
        self._cases += 1

    def _busy(self) -> list[str]:
        """Gauges of requests under way but for the tickers' own."""
        numbers = self.ask("/metrics").decode()
        found = re.findall(r"^ggmodel_requests_(?:running|waiting)\{.*\} (\S+)$", numbers, re.M)
        return [] if sum(map(float, found)) <= 1 else found

    def measured(self) -> tuple[int, int, int]:
        """Bytes, files and threads of the server and all runners together."""
        sums = [0, 0, 0]
        for process in (self.server.process.pid, *self.server.runners()):
            with suppress(OSError):
                sums = [a + b for a, b in zip(sums, usage(process), strict=True)]
        return sums[0], sums[1], sums[2]

    def close(self) -> None:
        self._watch.close()
        self.server.end()


def _text(made: list[Exchange]) -> str:
    longest = sorted(made, key=lambda one: one.begin - one.end)
    return "\n".join(map(str, longest[:20]))


def _kind(one: Exchange) -> str:
    """Method and path of a request, without what differs from one to the next."""
    line = b"".join(one.request["pieces"])[:200].partition(b"\r\n")[0].decode("latin-1")
    return re.sub(r"[^ -~]|\?.*| HTTP/.*", "", line)[:60]


def _message(one: Exchange) -> str:
    """The beginning of an error's message."""
    found = re.search(rb'"(?:message|error)":"([^"]{0,60})', one.data)
    return re.sub(r"[0-9]+", "N", found[1].decode("latin-1")) if found else ""


def _last_line(text: str, start: int) -> str:
    """The line of an exception behind the beginning of its traceback."""
    lines = [
        line for line in text[start:].splitlines()[1:] if re.match(r"(\w+\.)*[A-Z]\w+(: |$)", line)
    ]
    return re.sub(r"[0-9]+", "N", (lines or text[start:].splitlines())[0])[:100]
