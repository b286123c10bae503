"""Compiles grammars on trial, in a process whose time and memory are bounded."""

from __future__ import annotations

import atexit
import hashlib
import json
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ... import interpreter
from ...bounds import limits
from ...errors import GrammarError
from ...platforms import processes

_REMEMBERED = 1000
_START = 60.0  # seconds for the process to begin, on a busy machine
_PATIENCE = 10  # times as long as it may work, on a busy machine
_AGAIN = 600.0  # seconds from a failed start to the next


class _Trials:
    """The process, started when it is first needed, and its verdicts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._verdicts: dict[tuple[bytes, float, int], str] = {}
        self._next_start = 0.0

    def verdict(self, definition: str) -> str:
        """The reason against a grammar, or "". It is remembered, unless the machine was busy.

        Raises:
            OSError: no process can be started here.
        """
        seconds, memory = limits.grammar_seconds, limits.grammar_memory
        key = hashlib.sha256(definition.encode(errors="surrogatepass")).digest(), seconds, memory
        known = self._verdicts.get(key)
        if known is not None:  # without waiting for the trial of another
            return known
        with self._lock:
            if key not in self._verdicts:
                reason, lasting = self._try("definition", definition, seconds, memory)
                if not lasting:
                    return reason
                if len(self._verdicts) >= _REMEMBERED:
                    del self._verdicts[next(iter(self._verdicts))]
                self._verdicts[key] = reason
            return self._verdicts[key]

    def as_lark(self, gbnf: str) -> str:
        """A grammar in llama.cpp's form as one in Lark's.

        Raises:
            OSError: no process can be started here.
            GrammarError: it is broken, or has what only llama.cpp knows.
        """
        with self._lock:
            found, _ = self._try("gbnf", gbnf, limits.grammar_seconds, limits.grammar_memory)
        if isinstance(found, str):
            raise GrammarError(f"this GBNF cannot be used: {found}")
        return found[0]

    def _try(self, kind: str, text: str, seconds: float, memory: int) -> tuple[Any, bool]:
        """The process's answer, or the reason why it has none, and whether it would be the same
        another time."""
        process = self._running()
        line = json.dumps([kind, text, seconds, memory]).encode() + b"\n"
        answer = self._answer(process, line, seconds * _PATIENCE)
        if answer is None:
            return (
                f"compiling it took more than {seconds * _PATIENCE:g} seconds on a busy machine "
                f"({_PATIENCE} times limits.grammar_seconds); try again"
            ), False
        if answer:
            return json.loads(answer), True
        if process.returncode in processes.OUT_OF_TIME:
            return (
                f"compiling it takes more than {seconds:g} seconds (limits.grammar_seconds)",
                True,
            )
        return (
            "it is nested too deeply, or compiling it takes more than "
            f"{memory >> 20} MiB (limits.grammar_memory)"
        ), True

    def _answer(
        self, process: subprocess.Popen[bytes], line: bytes, seconds: float
    ) -> bytes | None:
        """The process's next line, None if it takes too long, or nothing if the process ends."""
        answers: SimpleQueue[bytes] = SimpleQueue()

        def ask() -> None:
            assert process.stdin is not None and process.stdout is not None
            answer = b""
            with suppress(OSError, ValueError):
                process.stdin.write(line)
                process.stdin.flush()
                answer = process.stdout.readline()
            answers.put(answer)

        try:
            threading.Thread(target=ask, name="ggmodel-grammar-trial", daemon=True).start()
            answer = answers.get(timeout=min(seconds, threading.TIMEOUT_MAX))
        except Empty:
            answer = None
        except BaseException:  # Ctrl-C
            self._end()
            raise
        if answer == b"":
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)  # for the reason why it ended
        if not answer:
            self._end()
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, ready to answer.

        Raises:
            OSError: it cannot be started.
        """
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        if time.monotonic() < self._next_start:
            raise OSError("the process did not begin some minutes ago")
        self._process = process = interpreter.start(
            [str(Path(__file__).with_name("grammar_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self._answer(process, b"", _START) not in (b"ready\n", b"ready\r\n"):
            self._end()
            self._next_start = time.monotonic() + _AGAIN
            raise OSError("the process ended, or does not begin")
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()

    def close(self) -> None:
        """Ends the process."""
        self._end()

    def forget(self) -> None:
        """Leaves the process to the one that this one was forked from."""
        self._lock, self._process = threading.Lock(), None


_trials = _Trials()
verdict, as_lark = _trials.verdict, _trials.as_lark
atexit.register(_trials.close)
processes.after_fork(_trials.forget)
