"""Builds ggml, or programs of llama.cpp, from source.

A successful build leaves a stamp, `built-VERSION`, with what it was built from. An interrupted one
resumes when it is started again; a failing one leaves the one before.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import atomic
from ..errors import Error, NativeError
from ..platforms import files, machine
from . import kits, programs, stamp

Progress = Callable[[float, str], None]
"""Takes the share done, 0 to 1, and what is done now."""

BUILDING = ".building"  # the suffix of the folder in which a build is made
_TAIL = 60  # lines of a failing program's output
_ROOM = 512 << 20  # bytes on the disk; kernels of GPUs take more
_CONFIGURED, _COMPILED = 0.02, 0.95  # shares of a build
# OpenMP's threads spin, and crawl beside any other program; ggml has a pool of its own.
_OPTIONS = ("-DGGML_RPC=ON", "-DGGML_OPENMP=OFF", "-DBUILD_SHARED_LIBS=ON")


def _quiet(share: float, what: str) -> None:
    """No progress."""


def build_ggml(
    folder: Path,
    options: Sequence[str] = (),
    *,
    root: Path,
    progress: Progress = _quiet,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Build and install ggml into `folder`, which is replaced at the end: headers and shared
    libraries for this very processor, with RPC.

    Args:
        options: of cmake, which come last: -DGGML_NATIVE=OFF builds for others, too.
        root: the folder of llama.cpp, see `source.source`.
        check: called with the installed build, before it replaces the one before.

    Raises:
        NativeError: the folder has something else in it, another build of it is under way, a
            program is missing or fails, or the disk is full.
    """
    refuse_others(folder)
    programs.need_compilers()
    work = folder.with_name(f"{folder.name}{BUILDING}")
    with _writing(work), alone(work):
        _compile(work, root, [*_OPTIONS, *_without("APP", "COMMON"), *options], ["ggml"], progress)
        done = work / "installed"
        shutil.rmtree(done, ignore_errors=True)
        progress(_COMPILED, "installing")
        _run([programs.builder("cmake"), "--install", str(work / "ggml"), "--prefix", str(done)])
        stamp.write(done, options=requested(options))
        if check:
            progress(_COMPILED, "checking")
            check(done)
        with atomic.private_folder(folder) as aside:
            if folder.exists():
                folder.rename(aside / folder.name)  # whole, or not at all where it is in use
            done.rename(folder)
        shutil.rmtree(work, ignore_errors=files.PINNED)


def build_programs(folder: Path, targets: Sequence[str], *, root: Path) -> None:
    """Build programs of llama.cpp with its own settings, in `folder`/bin.

    Raises:
        NativeError: as for `build_ggml`.
    """
    programs.need_compilers()
    (folder / stamp.NAME).unlink(missing_ok=True)
    # The server's page would be downloaded.
    unused = ["-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", *_without("EXAMPLES", "TESTS")]
    with _writing(folder), alone(folder):
        _compile(folder, root, [*unused, *_without("APP")], targets, _quiet)
        stamp.write(folder)


def requested(options: Sequence[str]) -> list[str]:
    """These options of cmake, and those of CMAKE_ARGS, which have the last word.

    Raises:
        NativeError: CMAKE_ARGS cannot be split into words.
    """
    return [*options, *programs.words("CMAKE_ARGS")]


def refuse_others(folder: Path) -> None:
    """Refuse to replace a folder that no build made.

    Raises:
        NativeError: it is one.
    """
    if not folder.exists() or (folder.is_dir() and any(folder.glob("built-*"))):
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise NativeError(
            f"{folder} has something else in it than an earlier build; name another folder"
        )


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Says what the system refuses."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < _ROOM:
            raise NativeError(
                f"{folder} has {free >> 20:,} MiB left, but a build needs {_ROOM >> 20:,}; make "
                "room, or build elsewhere"
            )
        yield
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise NativeError(f"cannot build in {folder}: {error.strerror or error}") from error


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Holds the folder in which a build is made.

    Raises:
        NativeError: another process holds it.
    """
    number = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if files.lock(number) is False:
            raise NativeError(f"another process is building in {work}; wait for it")
        yield
    finally:
        os.close(number)
        if files.PINNED:  # an open file cannot be removed
            with suppress(OSError):
                (work / "lock").unlink()
                work.rmdir()


def _without(*parts: str) -> list[str]:
    """Options that leave out parts of llama.cpp."""
    return [f"-DLLAMA_BUILD_{part}=OFF" for part in parts]


def _compile(
    work: Path, root: Path, options: Sequence[str], targets: Sequence[str], progress: Progress
) -> None:
    """Build targets of llama.cpp, which sets other defaults (kernels, graphs) than ggml."""
    cmake, ninja = programs.builder("cmake"), programs.builder("ninja")
    progress(0.0, "configuring")
    # Drops the options of an earlier build, and keeps its objects that are still valid.
    how = ["--fresh", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    what = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *requested(options)]
    try:
        _run([cmake, *how, "-S", str(root), "-B", str(work), *what])
    except NativeError as error:
        kits.refuse_missing(str(error))
        raise
    kits.check_configuration(work)

    def show(line: str) -> None:
        if match := re.match(r"\[(\d+)/(\d+)\]", line):
            share = int(match[1]) / max(int(match[2]), 1)
            progress(_CONFIGURED + (_COMPILED - _CONFIGURED) * share, "compiling")

    # Ninja ends its compilers when it is ended; cmake --build would leave them.
    _run([ninja, "-C", str(work), f"-j{_jobs()}", *targets], show)


def _jobs() -> int:
    if (given := os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "")).isdecimal():
        return max(int(given), 1)
    return machine.cores()


def _run(command: Sequence[str], show: Callable[[str], None] = lambda line: None) -> None:
    """Run silently; on failure, say the end of its output."""
    last: deque[str] = deque(maxlen=_TAIL)
    streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        command, **streams, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last.append(line)
                show(line)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        said = "".join(last).strip()[-4000:]
        raise NativeError(f"{said}\n\n{shlex.join(command)} failed, as said above")
