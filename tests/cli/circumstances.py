"""Runs commands under circumstances that shells rarely make, in forked processes.

`python -m tests.cli.circumstances` reads lines of JSON, [circumstance, arguments], and answers each
with [status, standard output, standard error]. One process imports everything, once.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # it forks

import ggmodel
from ggmodel.cli import main
from tests.children import wait

_TRIES = 5
_NEVER = 1 << 62
PATIENCE = 60.0  # seconds for one command; they take a fraction of one
LIMIT = 1 << 16  # bytes of input
IMPORTED = """
    numpy gguf jinja2 rich.console rich.table rich.progress tokenizers safetensors.numpy PIL.Image
    ggmodel.runner ggmodel.native ggmodel.convert ggmodel.convert.export ggmodel.workbench.show
    ggmodel.workbench.check ggmodel.workbench.profile ggmodel.workbench.trace ggmodel.models.llama
"""


@dataclass(frozen=True)
class Circumstance:
    """How a command is started.

    Attributes:
        stdin, stdout, stderr: the path of a file, "closed", "gone" (a pipe without a reader), or ""
            for a file that is empty at first.
        signal: comes at a random point of the command.
    """

    stdin: str = "/dev/null"
    stdout: str = ""
    stderr: str = ""
    signal: int = 0
    seed: int = 0


def run(arguments: list[str], how: Circumstance) -> tuple[int, str, str]:
    """The status, standard output and standard error of a command."""
    if not how.signal:
        return _once(arguments, how)[0]
    calls = _calls(tuple(arguments))
    for _ in range(_TRIES):
        at = random.Random(how.seed).randint(1, calls)
        answer, made = _once(arguments, how, at)
        if made is None or made >= at:
            return answer
        calls = made  # fewer than before, as when something is remembered
    raise RuntimeError(f"{arguments} makes {calls} calls, then fewer, and so on")


@cache
def _calls(arguments: tuple[str, ...]) -> int:
    """How many functions the main thread calls in an undisturbed run."""
    return _once(list(arguments), Circumstance(), _NEVER)[1] or 1


def _once(
    arguments: list[str], how: Circumstance, at: int = 0
) -> tuple[tuple[int, str, str], int | None]:
    """Runs a command; its answer, and the calls that it made until it ended by itself.

    Args:
        at: the call at which the signal comes; 0 counts none.
    """
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
        tempfile.TemporaryFile() as counted,
    ):
        if (process := os.fork()) == 0:
            _child(arguments, how, at, (out.fileno(), errors.fileno(), counted.fileno()))
        status = wait(process, PATIENCE)
        for file in (out, errors, counted):
            file.seek(0)
        calls = counted.read()
        answer = status, out.read().decode("utf-8", "replace"), errors.read().decode()
        return answer, int(calls) if calls else None


def _child(arguments: list[str], how: Circumstance, at: int, files: tuple[int, int, int]) -> None:
    """The forked process; never returns."""
    out, errors, counted = files
    status = 99
    try:
        streams = ((how.stdin, -1), (how.stdout, out), (how.stderr, errors))
        for number, (where, file) in enumerate(streams):
            _redirect(number, where, file)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ggmodel.limits.input_bytes = ggmodel.limits.input_line_bytes = LIMIT
        sys.argv = ["ggmodel", *arguments]
        counter = _Counter(at, how.signal)
        if at:
            sys.setprofile(counter)
        try:
            main()
        finally:
            sys.setprofile(None)
            os.write(counted, str(counter.calls).encode())
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0
    finally:
        os._exit(status)


class _Counter:
    """Counts the calls of functions, and sends the process a signal at one of them."""

    def __init__(self, at: int, number: int):
        self.calls, self._at, self._number = 0, at, number

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.calls += 1
            if self.calls == self._at:
                os.kill(os.getpid(), self._number)


def _redirect(number: int, where: str, file: int) -> None:
    """Gives the process a standard stream, as Python would when it starts.

    Args:
        file: the stream if `where` is empty.
    """
    names = ("stdin", "stdout", "stderr")
    if where == "closed":
        os.close(number)
        setattr(sys, names[number], None)
        return
    if where == "gone":
        reader, file = os.pipe()
        os.close(reader)
    elif where:
        file = os.open(where, os.O_RDWR if number else os.O_RDONLY)
    os.dup2(file, number)
    mode = "w" if number else "r"
    setattr(sys, names[number], open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def serve() -> None:
    for name in IMPORTED.split():
        importlib.import_module(name)
    for line in sys.stdin:
        how, arguments = json.loads(line)
        arguments = [os.fsdecode(a.encode("utf-8", "surrogateescape")) for a in arguments]
        print(json.dumps(run(arguments, Circumstance(**how))), flush=True)


if __name__ == "__main__":
    serve()
