"""Builds of ggml, or programs of llama.cpp: made from source, kept in "ggml/NAME".

A successful build leaves a stamp, `built-VERSION`, with what it was built from. An interrupted one
resumes when it is started again; a failing one leaves the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import storage
from ..errors import ConfigError, Error, NativeError
from ..ggml_choice import INSTALLED, choose, is_chosen
from ..platforms import files, machine
from . import PACKAGE, SHA256, VERSION, requirements

STAMP = f"built-{VERSION}"
_PACKAGE = f"{PACKAGE.replace('-', '_')}-{VERSION}"
_NO_PIP = "No module named pip"


def source_folder(cache: Path, unpacked: Path | None = None) -> Path:
    """The folder of llama.cpp.

    Args:
        cache: the package is downloaded and unpacked here, once.
        unpacked: an unpacked package instead.

    Raises:
        NativeError: it cannot be downloaded, is another one than expected, or has no llama.cpp.
    """
    folder = unpacked or cache / _PACKAGE
    if unpacked is None and not folder.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _download(folder)
        except OSError as error:
            raise NativeError(
                f"cannot write the source of ggml to {cache}: {error.strerror or error}"
            ) from error
    inner = folder.resolve() / "vendor" / "llama.cpp"
    if not (inner / "CMakeLists.txt").is_file():
        advice = "name the folder of an unpacked package" if unpacked else f"delete {folder}"
        raise NativeError(f"{inner} has no llama.cpp; {advice}")
    return inner


def _download(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as name:
        work = Path(name)
        _fetch(work)
        packed = work / f"{_PACKAGE}.tar.gz"
        with open(packed, "rb") as file:
            digest = hashlib.sha256()
            while piece := file.read(1 << 20):
                digest.update(piece)
        if digest.hexdigest() != SHA256:
            raise NativeError(
                f"the package index has another {packed.name} than the one known here: its SHA-256 "
                f"is {digest.hexdigest()}, not {SHA256}; use another index"
            )
        unpack(packed, work)
        # Renamed when complete, so that an interrupted run leaves nothing that looks unpacked.
        try:
            (work / _PACKAGE).rename(folder)
        except OSError:  # another one was faster
            if not folder.is_dir():
                raise


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar file whose bytes are known: Debian 12's Python has no filter for its paths."""
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        packed.extractall(folder)


def _fetch(target: Path) -> None:
    # Only this package as source: the tools that read its metadata may be binary.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", PACKAGE, "--dest", str(target), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if _NO_PIP in done.stderr:
        raise NativeError(
            f"{sys.executable} has no pip, which downloads the source of ggml: "
            f"{sys.executable} -m ensurepip, or unpack {_PACKAGE}.tar.gz and name its folder"
        )
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[-2000:]
        raise NativeError(
            f"{output}\n\nthe source of ggml, {PACKAGE} {VERSION}, cannot be downloaded; without a "
            f"network, unpack {_PACKAGE}.tar.gz and name its folder"
        )


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
    requirements.need_compilers()
    work = folder.with_name(f"{folder.name}{BUILDING}")
    with _writing(work), alone(work):
        _compile(work, root, [*_OPTIONS, *_without("APP", "COMMON"), *options], ["ggml"], progress)
        done = work / "installed"
        shutil.rmtree(done, ignore_errors=True)
        progress(_COMPILED, "installing")
        cmake = requirements.need_builder("cmake")
        _run([cmake, "--install", str(work / "ggml"), "--prefix", str(done)])
        write_stamp(done, options=requested(options))
        if check:
            progress(_COMPILED, "checking")
            check(done)
        with storage.private_folder(folder) as aside:
            if folder.exists():
                folder.rename(aside / folder.name)  # whole, or not at all where it is in use
            done.rename(folder)
        shutil.rmtree(work, ignore_errors=files.PINNED)


def build_programs(folder: Path, targets: Sequence[str], *, root: Path) -> None:
    """Build programs of llama.cpp with its own settings, in `folder`/bin.

    Raises:
        NativeError: as for `build_ggml`.
    """
    requirements.need_compilers()
    (folder / STAMP).unlink(missing_ok=True)
    # The server's page would be downloaded; ik_llama.cpp's benchmarks are among its examples.
    unused = ["-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", *_without("TESTS")]
    with _writing(folder), alone(folder):
        _compile(folder, root, [*unused, *_without("APP")], targets, _quiet)
        write_stamp(folder)


def requested(options: Sequence[str]) -> list[str]:
    """These options of cmake, and those of CMAKE_ARGS, which have the last word.

    Raises:
        NativeError: CMAKE_ARGS cannot be split into words.
    """
    return [*options, *requirements.words("CMAKE_ARGS")]


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
    cmake, ninja = requirements.need_builder("cmake"), requirements.need_builder("ninja")
    progress(0.0, "configuring")
    # Drops the options of an earlier build, and keeps its objects that are still valid.
    how = ["--fresh", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    what = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *_kept_stores(), *requested(options)]
    try:
        _run([cmake, *how, "-S", str(root), "-B", str(work), *what])
    except NativeError as error:
        requirements.refuse_missing(str(error))
        raise
    requirements.check_configuration(work)

    def show(line: str) -> None:
        if match := re.match(r"\[(\d+)/(\d+)\]", line):
            share = int(match[1]) / max(int(match[2]), 1)
            progress(_CONFIGURED + (_COMPILED - _CONFIGURED) * share, "compiling")

    # Ninja ends its compilers when it is ended; cmake --build would leave them.
    _run([ninja, "-C", str(work), f"-j{_jobs()}", *targets], show)


def _kept_stores() -> list[str]:
    """An option of cmake for GCC, which takes ldtilecfg for a read of eight bytes and drops stores
    to the others: the first product by AMX then is an illegal instruction. Empty for compilers that
    do not take the flags. Flags of releases, as other options set CMAKE_CXX_FLAGS."""
    compiler, flags = os.environ.get("CXX", "c++"), ["-fno-tree-dse", "-fno-dse"]
    try:
        taken = subprocess.run(
            [*shlex.split(compiler), *flags, "-Werror", "-x", "c++", "-E", os.devnull],
            capture_output=True,
            timeout=60,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []
    kept = " ".join(["-O3", "-DNDEBUG", *flags])
    return [] if taken.returncode else [f"-DCMAKE_CXX_FLAGS_RELEASE={kept}"]


def _jobs() -> int:
    if (jobs := os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "")).isdecimal():
        return max(int(jobs), 1)
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
        output = "".join(last).strip()[-4000:]
        raise NativeError(f"{output}\n\n{shlex.join(command)} failed, as said above")


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def write_stamp(folder: Path, **fields: Any) -> None:
    """Marks a build of this version as finished.

    Args:
        fields: of a `Stamp`.
    """
    (folder / STAMP).write_text(json.dumps(fields), encoding="utf-8")


def builds_folder() -> Path:
    """The folder of builds."""
    return storage.data_folder() / "ggml"


def path_of(name: str) -> Path:
    """The folder of the build of that name, which need not exist.

    Raises:
        NativeError: it is no name.
    """
    reserved = name == INSTALLED or name.endswith(BUILDING)
    if not _NAME.fullmatch(name) or reserved:
        raise NativeError(
            f"{name!r:.80} cannot be the name of a build; give up to 64 letters, digits, '.', '_' "
            f"and '-', a letter or digit first, and not {INSTALLED!r}"
        )
    return builds_folder() / name


def build_names() -> list[str]:
    """The builds that are complete."""
    return [path.name for path in _entries() if any(path.glob("built-*"))]


def unfinished() -> list[str]:
    """The builds that were interrupted or failed, or are under way."""
    suffix = BUILDING
    return [p.name.removesuffix(suffix) for p in _entries() if p.name.endswith(suffix)]


def remove(name: str) -> int:
    """Removes a build, also an unfinished one; returns its bytes. A default that is removed makes
    way for the installed one.

    Raises:
        NativeError: there is no such build, or it is under way; then all stays as it was.
        WriteError: it cannot be removed.
    """
    path = path_of(name)
    work = path.with_name(f"{path.name}{BUILDING}")
    folders = [p for p in (path, work) if p.is_dir() and not p.is_symlink()]
    if not folders:
        names = ", ".join([*build_names(), *unfinished()]) or "none"
        raise NativeError(f"no build is called {name!r}; there are: {names}")
    if path in folders:
        refuse_others(path)
    freed = 0
    with ExitStack() as held:
        if work in folders:
            with storage.naming(work):
                held.enter_context(alone(work))
        if is_chosen(path):
            choose(None)
        for at in folders:
            with storage.naming(at, after="it may be there in part"):
                freed += sum(p.lstat().st_size for p in at.rglob("*") if not p.is_dir())
                if at == work:
                    shutil.rmtree(work, ignore_errors=files.PINNED)
                else:
                    with storage.private_folder(at) as aside:  # half a build must not look whole
                        at.rename(aside / at.name)
    return freed


def _entries() -> list[Path]:
    try:
        entries = sorted(builds_folder().iterdir())
    except (OSError, ConfigError):  # none was made, or the user has no home folder
        return []
    return [p for p in entries if p.is_dir() and not p.name.startswith(".")]
