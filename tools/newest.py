"""Builds the newest ggml that a package carries as source, for this machine.

    python newest.py ggml FOLDER    headers and shared libraries, with RPC, for GGMODEL_GGML
    python newest.py peer FOLDER    llama.cpp's own benchmarks, in FOLDER/bin, to compare with

The source is downloaded once, beside FOLDER. CMAKE_ARGS adds options, such as -DGGML_CUDA=ON. A
successful build leaves FOLDER/built-VERSION; an interrupted one resumes when it is started again.
This needs Python's standard library, compilers, and cmake and ninja from PyPI.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE = "llama-cpp-python==0.3.36"
"""A source package that contains llama.cpp, which contains ggml."""

NAME, VERSION = SOURCE.split("==")

_PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-completion")


def source(cache: Path) -> Path:
    """The folder of llama.cpp.

    Args:
        cache: the package is downloaded and unpacked here, once. GGMODEL_PEERS may name an unpacked
            package instead.
    """
    given = os.environ.get("GGMODEL_PEERS")
    folder = Path(given) if given else cache / f"{NAME.replace('-', '_')}-{VERSION}"
    if not given and not folder.is_dir():
        _download(folder)
    inner = folder.resolve() / "vendor" / "llama.cpp"
    if not (inner / "CMakeLists.txt").is_file():
        sys.exit(f"{inner} has no llama.cpp: unset GGMODEL_PEERS, or delete {folder}")
    return inner


def build_ggml(folder: Path) -> None:
    """Build and install ggml into `folder`, which is replaced at the end."""
    if folder.exists() and any(folder.iterdir()) and not list(folder.glob("built-*")):
        sys.exit(f"{folder} has something else in it than an earlier build; name another folder")
    work = folder.with_name(f"{folder.name}.building")
    done = work / "installed"
    # OpenMP's threads spin, and crawl beside any other program; ggml has a pool of its own.
    options = ["-DGGML_RPC=ON", "-DGGML_OPENMP=OFF", "-DBUILD_SHARED_LIBS=ON"]
    _build(work, options + _without("APP", "COMMON"), ["ggml"])
    shutil.rmtree(done, ignore_errors=True)
    _run([_tool("cmake"), "--install", str(work / "ggml"), "--prefix", str(done)])
    (done / f"built-{VERSION}").touch()
    if folder.exists():
        shutil.rmtree(folder)
    done.rename(folder)
    shutil.rmtree(work)


def build_peer(folder: Path) -> None:
    """Build llama.cpp's benchmarks with its own settings, in `folder`."""
    stamp = folder / f"built-{VERSION}"
    stamp.unlink(missing_ok=True)
    unused = _without("APP", "EXAMPLES", "SERVER", "TESTS")
    _build(folder, ["-DLLAMA_OPENSSL=OFF", *unused], _PROGRAMS)
    stamp.touch()


def _download(folder: Path) -> None:
    # Only this package as source: the tools that read its metadata may be binary.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    cache = folder.parent
    _run([*command, "--no-binary", NAME, "--dest", str(cache), SOURCE])
    packed = cache / f"{folder.name}.tar.gz"
    with tempfile.TemporaryDirectory(dir=cache, prefix=".unpacking-") as unpacking:
        with tarfile.open(packed) as archive:
            if not hasattr(tarfile, "data_filter"):
                sys.exit("this Python cannot unpack safely; take 3.10.12, 3.11.4 or a later one")
            archive.extractall(unpacking, filter="data")
        # Renamed when complete, so that an interrupted run leaves nothing that looks unpacked.
        try:
            (Path(unpacking) / folder.name).rename(folder)
        except OSError:  # another one was faster
            if not folder.is_dir():
                raise
    packed.unlink(missing_ok=True)


def _without(*parts: str) -> list[str]:
    """Options that leave out parts of llama.cpp."""
    return [f"-DLLAMA_BUILD_{part}=OFF" for part in parts]


def _build(folder: Path, options: Sequence[str], targets: Sequence[str]) -> None:
    """Build targets of llama.cpp, which sets other defaults (kernels, graphs) than ggml."""
    root, cmake = source(folder.parent / "source"), _tool("cmake")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *options]
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    # Drops the options of an earlier build, and keeps its objects that are still valid.
    how = ["--fresh", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"]
    _run([cmake, *how, "-S", str(root), "-B", str(folder), *options])
    jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    _run([cmake, "--build", str(folder), "--parallel", str(jobs), "--target", *targets])


def _tool(name: str) -> str:
    """A program of this Python's environment, or of the system."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        sys.exit(f"{name} is missing: {sys.executable} -m pip install cmake ninja")
    return found


def _run(command: Sequence[str]) -> None:
    """Run silently; on failure, exit with the end of its output."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{done.stdout.strip()[-4000:]}\n\n{shlex.join(command)} failed, as said above")


if __name__ == "__main__":
    builders = {"ggml": build_ggml, "peer": build_peer}
    if len(sys.argv) != 3 or sys.argv[1] not in builders:
        sys.exit(__doc__)
    try:
        builders[sys.argv[1]](Path(sys.argv[2]).absolute())
    except KeyboardInterrupt:
        sys.exit(130)
