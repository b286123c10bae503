"""How a command ends: an exit status, and a line on standard error unless all went well."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import typer

from ..errors import Error, NotInstalled
from ..platforms import processes
from ..platforms.processes import NO_READER
from .terminal import say, say_error

FAILED = 1
# As in sysexits.h: a program that this one needs is missing, and an internal software error.
UNAVAILABLE, BUG = 69, 70
_OF_STREAMS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_SOON = 0.01  # seconds; a finalizer has ended by then, mostly
_LONGEST = 400  # characters of a message that is not ours


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: like Ctrl-C, it may come anywhere and is never kept from its way out.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int):
        super().__init__()
        self.number = number


# Numbers of signals. Their exceptions would hold frames, and with these the context managers that
# have yet to remove a file.
_received: list[int] = []


def debugging() -> bool:
    """Whether errors are to be shown with their tracebacks."""
    return os.environ.get("GGMODEL_DEBUG", "0") not in ("", "0")


def prepare() -> None:
    """Sets the process up: standard streams that exist and never fail to encode, and signals that
    end a command as Ctrl-C does."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # tests put other objects there
            # A model may write characters that a terminal's encoding lacks.
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    if not processes.NAMED_STREAMS and "PYTHONIOENCODING" not in os.environ:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    for number in processes.ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one
            signal.signal(number, _terminate)
    sys.unraisablehook = _raise_again


@contextmanager
def reporting_errors(shown: Callable[[object], str] = str) -> Iterator[None]:
    """Says what went wrong, and turns it into typer's way to end with a status.

    Args:
        shown: how to put a message of ggmodel.
    """
    try:
        yield
    except SystemExit:  # typer has done what completion wants
        raise
    except BaseException as error:
        if hasattr(error, "exit_code"):  # one of typer's, which says it itself
            raise
        raise typer.Exit(_failed(error, shown)) from None


def finish(command: Callable[[], object]) -> NoReturn:
    """Runs a command and ends the process. At the very end signals end it at once, since nothing is
    left to clean up."""
    try:
        status = _status(command)
        if status == 0:
            sys.stdout.flush()
        _let_signals_end_it()
    except BaseException as error:
        _let_signals_end_it()
        status = _failed(error)
    for stream in (sys.stdout, sys.stderr):
        _settle(stream)
    sys.exit(status)


def _status(command: Callable[[], object]) -> Any:
    try:
        command()
    except SystemExit as error:
        # Typer says nothing about a signal outside of `reporting_errors`.
        cause = error.__context__ and error.__context__.__cause__
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        return error.code or 0
    return 0


def _let_signals_end_it() -> None:
    for number in (signal.SIGINT, *processes.ENDING):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    _received.append(number)
    raise Terminated(number)


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """Sends a signal once more that came within a finalizer: Python drops what is raised there."""
    error = dropped.exc_value
    if not isinstance(error, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    number = signal.SIGINT
    if isinstance(error, Terminated):
        number = signal.Signals(error.number)
        signal.signal(number, _terminate)
    again = threading.Timer(_SOON, processes.send_myself, (number,))
    again.daemon = True
    again.start()


def _open_streams() -> None:
    """Opens standard streams that the caller closed, or files would get their numbers and what is
    printed. Reading from them and writing to them fails, but for standard error, which is lost."""
    for number, way in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, way)  # gets the lowest number that is free
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _failed(error: BaseException, shown: Callable[[object], str] = str) -> int:
    """Says what went wrong."""
    error = _interruption(error) or error
    if isinstance(error, Terminated):
        say("terminated")
        return 128 + error.number
    if isinstance(error, KeyboardInterrupt):
        say("interrupted")
        return 128 + signal.SIGINT
    if processes.has_no_reader(error):
        return NO_READER
    if isinstance(error, Error):
        status, message = UNAVAILABLE if isinstance(error, NotInstalled) else FAILED, shown(error)
    else:
        status, message = _unexpected(error)
    if debugging():
        with suppress(OSError):
            traceback.print_exception(error)
    else:
        say_error(message)
    return status


def _interruption(error: BaseException | None) -> KeyboardInterrupt | None:
    """The signal that another error came of, such as a zip file that cannot be closed half-written.
    After SIGTERM all errors are, even those of C code that forgets what they came of."""
    if _received:
        return Terminated(_received[-1])
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return error
        error = error.__context__
    return None


def _unexpected(error: BaseException) -> tuple[int, str]:
    """The exit status of an error that no part of ggmodel expects, and a line that describes it."""
    if isinstance(error, MemoryError):
        return FAILED, "not enough memory; close other programs, or choose a smaller model"
    if isinstance(error, OSError) and error.strerror:
        where = str(error.filename or "")
        if not where and error.errno in _OF_STREAMS:  # files are always named
            where = "cannot write to standard output"
        return FAILED, _cut(where) + ": " * bool(where) + error.strerror
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({os.path.basename(f.filename)}:{f.lineno})" for f in last)
    first = str(error).strip().partition("\n")[0]
    what = type(error).__name__ + (f": {_cut(first)}" if first else "")
    return BUG, f"{what}{where}; a bug of ggmodel: GGMODEL_DEBUG=1 shows the traceback to report"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _settle(stream: Any) -> None:
    """Drops what cannot be written: Python flushes once more when it ends, and would complain."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
