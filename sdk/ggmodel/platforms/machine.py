"""The machine: its memory and cores, and its shared libraries."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def _psutil() -> Any:
    return importlib.import_module("psutil")  # only systems other than Linux have it


@dataclass(frozen=True)
class Memory:
    """Bytes.

    Attributes:
        total: of the machine.
        free: available without swapping, caches of files included.
        swap: free swap space.
    """

    total: int
    free: int
    swap: int


def memory() -> Memory:
    """The memory of a machine without /proc/meminfo. A Linux without it, as in some sandboxes,
    tells the total only, and all of it counts as free."""
    if sys.platform == "linux":
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Memory(total, total, 0)
    virtual = _psutil().virtual_memory()
    return Memory(virtual.total, virtual.available, _psutil().swap_memory().free)


def peak_memory() -> int:
    """Peak resident bytes of this process, mapped files included."""
    if sys.platform == "win32":
        return _psutil().Process().memory_info().peak_wset
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def private_memory() -> int:
    """Bytes that this process has promised itself, in memory or in the page file; on Windows."""
    return _psutil().Process().memory_info().private


def cores() -> int:
    """Cores that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    if sys.platform == "win32":
        return len(_psutil().Process().cpu_affinity())
    return os.cpu_count() or 1


CUDA_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

BINDING_SUFFIX = ".pyd" if sys.platform == "win32" else ".abi3.so"
"""The suffix of a module of Python that uses its stable interface only."""

_PREFIX = "" if sys.platform == "win32" else "lib"
_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_WINDOWS_COMPILERS = ("clang", "gcc")


def file_name(name: str) -> str:
    """The file of a library: "libggml-base.so" of "ggml-base"."""
    return f"{_PREFIX}{name}{_SUFFIX}"


def places(prefix: Path) -> list[Path]:
    """The folders of an installation in which its libraries may lie."""
    if sys.platform == "win32":
        return [prefix / "bin", prefix / "lib"]
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    return [prefix / "lib64", prefix / "lib", prefix / "lib" / multiarch]


def find(folder: Path, name: str, version: str) -> Path:
    """A library, by the name with which others depend on it. On macOS that has a major version, and
    a wheel, which has no links, holds a copy for each of its names: to load two of them would be to
    have two libraries."""
    if sys.platform == "darwin":
        numbered = folder / f"{_PREFIX}{name}.{version.partition('.')[0]}{_SUFFIX}"
        if numbered.is_file():
            return numbered
    return folder / file_name(name)


def names_in(folder: Path, begin: str) -> list[str]:
    """The names of the libraries in a folder that begin so, sorted."""
    files = (p.name for p in folder.glob(f"{_PREFIX}{begin}*{_SUFFIX}"))
    names = (name[len(_PREFIX) : -len(_SUFFIX)] for name in files)
    return sorted(name for name in names if "." not in name)  # without numbered ones


def module_file(name: str) -> str:
    """The file of a library that is loaded by its path alone. macOS has the suffix of Linux for
    these."""
    return f"{_PREFIX}{name}{'.dll' if sys.platform == 'win32' else '.so'}"


def modules_in(folder: Path, begin: str) -> list[Path]:
    """Libraries that are loaded by their path alone, whose names begin so, sorted."""
    return sorted(folder.glob(module_file(f"{begin}*")))


def load(path: Path, everywhere: bool) -> None:
    """Loads a library, and what it depends on from its own folder.

    Args:
        everywhere: modules that are loaded later find its symbols. On Windows they name the library
            instead, and get the one that is loaded.

    Raises:
        OSError: it cannot be loaded.
    """
    if sys.platform == "win32":
        os.add_dll_directory(str(path.parent))
        ctypes.CDLL(str(path))
    else:
        ctypes.CDLL(str(path), mode=os.RTLD_NOW | (os.RTLD_GLOBAL if everywhere else os.RTLD_LOCAL))


def default_compiler() -> str:
    """The command of the C compiler, which must take the options of gcc and clang."""
    if sys.platform != "win32":
        return "cc"
    return next(filter(shutil.which, _WINDOWS_COMPILERS), _WINDOWS_COMPILERS[0])


def linking(prefix: Path, names: Sequence[str]) -> list[str]:
    """Options of the C compiler that make a module of Python.

    Symbols of the libraries stay open, because the loader puts these into the global scope first:
    one module serves every build of a version, in any folder and with any backends. Windows knows
    no open symbols, so the module names the libraries there.

    Args:
        prefix: the installation of the libraries.
        names: of the libraries.
    """
    if sys.platform == "win32":
        python = Path(sys.base_prefix) / "libs" / "python3.lib"
        return ["-shared", *(str(_import_library(prefix, name)) for name in names), str(python)]
    if sys.platform == "darwin":
        return ["-fPIC", "-bundle", "-undefined", "dynamic_lookup"]
    return ["-fPIC", "-shared", "-s"]


def _import_library(prefix: Path, name: str) -> Path:
    """The file that tells the linker of Windows about a library: MSVC's, or MinGW's."""
    paths: list[Any] = [prefix / "lib" / f"{name}.lib", prefix / "lib" / f"lib{name}.dll.a"]
    return next((path for path in paths if path.is_file()), paths[0])
