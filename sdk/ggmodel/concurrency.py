"""Concurrency: Python child processes; waits and long library calls that Ctrl-C ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from .platforms.processes import CHILD, TICK, how_it_ended

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")


def next_of(queue: SimpleQueue[_T]) -> _T:
    """The next item of a queue, as soon as there is one."""
    if TICK is None:
        return queue.get()
    while True:
        try:
            return queue.get(timeout=TICK)
        except Empty:
            pass


def until_set(event: threading.Event) -> None:
    """Waits for an event."""
    while not event.wait(TICK):
        pass


def result_of(future: Future[_T]) -> _T:
    """Waits for a result, which may be an error that is raised."""
    if TICK is not None and not future.done():
        ended = threading.Event()
        future.add_done_callback(lambda _: ended.set())
        until_set(ended)
    return future.result()


def in_a_thread(work: Callable[[], _T], *, wait: bool = False) -> _T:
    """The result of `work`, which runs where no Ctrl-C reaches it.

    Ctrl-C is noticed here at once, even if the work is one long call of a library; and a library
    that calls Python cannot swallow it.

    Args:
        wait: after Ctrl-C, let the work end first, which must be short then.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    results: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    working, waiting = threading.Lock(), [True]

    def run() -> None:
        with working:
            try:
                if waiting:
                    results.put((True, work()))
            except BaseException as error:
                results.put((False, error))

    try:
        threading.Thread(target=run, name="ggmodel-work", daemon=True).start()
        good, result = next_of(results)
    except BaseException:
        waiting.clear()  # if it has not begun
        if wait:
            with working:
                raise
        raise
    if not good:
        raise result
    return result


_FOLDERS = re.compile(r"^(?:[A-Za-z]:)?[/\\]\S*[/\\](?=[^/\\\s]+:\d+: )")
_STDERR = 8 << 10  # bytes kept from the end of its standard error


def start_python(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, **streams: Any
) -> subprocess.Popen[bytes]:
    """Starts Python with these arguments. It imports the same modules as this process.

    Args:
        environment: variables beside this process's.
        streams: `stdin` and the like, as `subprocess.Popen` takes them.

    Raises:
        OSError: it cannot be started, or this program has no Python: a frozen one would start
            itself.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError(f"this program runs no other scripts; sys.executable is {sys.executable!r}")
    variables = {
        **os.environ,
        **(environment or {}),
        "PYTHONPATH": _import_path(),
        "PYTHONSAFEPATH": "1",
    }
    try:
        process: Any = subprocess.Popen(
            [sys.executable, *arguments], env=variables, **CHILD, **streams
        )
    except (TypeError, ValueError) as error:  # odd paths
        raise OSError(str(error)) from None
    return process


def _import_path() -> str:
    """The folders that this process imports from, but for a current folder that is gone."""
    paths = [path for path in sys.path if isinstance(path, str)]
    with suppress(FileNotFoundError):
        return os.pathsep.join(path or os.getcwd() for path in paths)
    return os.pathsep.join(filter(os.path.isabs, paths))


class Tail(threading.Thread):
    """Reads a process's standard error and keeps the end of it."""

    def __init__(self, process: subprocess.Popen[bytes]):
        super().__init__(name="ggmodel-stderr", daemon=True)
        assert process.stderr is not None
        self._pipe = process.stderr
        self._text = b""
        self.start()

    def run(self) -> None:
        with self._pipe:
            while piece := os.read(self._pipe.fileno(), _STDERR):
                self._text = (self._text + piece)[-_STDERR:]

    def last_line(self) -> str:
        """The last line that is not empty, once the process has ended, or "". The source file that
        ggml names loses its folders."""
        self.join(1)
        lines = [line.strip() for line in self._text.decode(errors="replace").splitlines()]
        return _FOLDERS.sub("", next((line for line in reversed(lines) if line), ""))


def ending(status: int, last_line: str) -> str:
    """How a process ended: "ended by SIGABRT: file.cpp:1: the reason".

    Args:
        status: as `subprocess.Popen.returncode` has it.
        last_line: its last message, or "".
    """
    how = how_it_ended(status)
    return f"{how}: {last_line}" if last_line else how
