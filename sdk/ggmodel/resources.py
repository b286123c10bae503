"""Resources: things that are closed, and memory that runs out.

Python and the system report a shortage of memory in many ways, ggmodel raises `OutOfMemory`.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .errors import Error, OutOfMemory

if TYPE_CHECKING:
    from typing_extensions import Self


class Closable(Protocol):
    """A thing with `close`."""

    def close(self) -> object: ...


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Frees what this object holds; idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def closed_on_error(*things: Closable) -> Iterator[None]:
    """Closes these things, the last first, if the block raises, such as by Ctrl-C."""
    try:
        yield
    except BaseException:
        for thing in reversed(things):
            thing.close()
        raise


F = TypeVar("F", bound=Callable[..., Any])

# Room beside what is certain to be needed: libraries in C, C++ or Rust end the process when they
# get no memory, even for a small thing, or no thread.
_MARGIN = 8 << 20  # bytes
# Address space in which numpy and the modules of ggmodel can be imported. With less, libraries that
# numpy loads end the process.
_NUMPY = 128 << 20
_THREADS = "OPENBLAS_NUM_THREADS"
_KINDS = (MemoryError, RuntimeError, ImportError, OSError)
_UNMAPPED = ("cannot allocate memory", "failed to map segment")
_LONGEST_CHAIN = 10
# Windows says that its page file is too small, or has no error number for a lack of memory.
_WINDOWS = (8, 14, 1455)


def as_error(error: BaseException) -> BaseException:
    """`OutOfMemory` for an error that means it and is none of ggmodel's; else the error itself."""
    if isinstance(error, Error) or not _means_shortage(error):
        return error
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    shortage = OutOfMemory(
        f"memory ran out ({reason:.200}); a smaller context_length, batch_size or parallel needs "
        "less, and `ulimit -v` shows whether this process may have more"
    )
    shortage.__cause__ = error
    return shortage


def reported(function: F) -> F:
    """A function whose `MemoryError`, and all else that means it, becomes `OutOfMemory`."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except _KINDS as error:
            reportable = as_error(error)
            if reportable is error:
                raise
            raise reportable from error

    return call  # type: ignore[return-value]


def need_room(nbytes: int, what: str) -> None:
    """Called before libraries allocate that end the process where they cannot. It takes a few
    microseconds.

    Args:
        nbytes: what they allocate for certain.
        what: what that is.

    Raises:
        OutOfMemory: the process cannot have so many bytes, and a few more.
    """
    if not _has_room(nbytes + _MARGIN):
        raise OutOfMemory(
            f"{nbytes:,} bytes for {what} do not fit in memory, with {_MARGIN >> 20} MiB to spare; "
            "`ulimit -v` shows whether this process may have more"
        )


def import_numpy() -> None:
    """Imports numpy, if nobody has.

    Raises:
        OutOfMemory: the process may not take as much address space as that needs.
    """
    if "numpy" in sys.modules or not _limited():
        return
    if not _has_room(_NUMPY):
        raise OutOfMemory(
            f"less than {_NUMPY >> 20} MiB of address space are left, too little to load a model; "
            "`ulimit -v` shows and raises the limit of this process"
        )
    # Each of its threads takes some 40 MiB of address space; ggmodel multiplies with ggml.
    unset = _THREADS not in os.environ
    if unset:
        os.environ[_THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        if unset:
            del os.environ[_THREADS]


def _means_shortage(error: BaseException | None) -> bool:
    for _ in range(_LONGEST_CHAIN):
        text = str(error).lower()
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, RuntimeError):
            return "can't start new thread" in text
        if isinstance(error, OSError):
            lacks = error.errno == errno.ENOMEM or getattr(error, "winerror", 0) in _WINDOWS
            return lacks or any(t in text for t in _UNMAPPED)
        if not isinstance(error, ImportError):
            return False
        if any(t in text for t in _UNMAPPED):
            return True
        error = error.__cause__ or error.__context__  # of a module that imports another
    return False


def _limited() -> bool:
    if sys.platform == "win32":
        return False
    import resource

    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _has_room(nbytes: int) -> bool:
    try:
        if sys.platform == "win32":
            mmap.mmap(-1, nbytes).close()
        else:
            mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True
