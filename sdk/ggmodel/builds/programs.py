"""The programs that a build needs, and how a missing one is installed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ..errors import NativeError
from ..extras import install_command

_COMPILERS = {
    "C": ("CC", ("cc", "gcc", "clang"), "gcc", "gcc"),
    "C++": ("CXX", ("c++", "g++", "clang++"), "g++", "gcc-c++"),
}


def find(name: str, *places: Path) -> str | None:
    """A program of this Python's environment, of the system, or in other folders."""
    own = (Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))
    path = [*map(str, own), os.environ.get("PATH", os.defpath), *map(str, places)]
    return shutil.which(name, path=os.pathsep.join(path))


def builder(name: str) -> str:
    """cmake or ninja.

    Raises:
        NativeError: it is missing.
    """
    if found := find(name):
        return found
    raise NativeError(
        f"{name} is missing; the extra `build` brings it: "
        f"{sys.executable} -m {install_command('build')}"
    )


def words(variable: str) -> list[str]:
    """The words of an environment variable, as a shell splits them.

    Raises:
        NativeError: a quotation mark is left open.
    """
    given = os.environ.get(variable, "")
    try:
        return shlex.split(given)
    except ValueError as error:
        raise NativeError(f"{variable} is {given!r:.80}: {error}; close it, or unset it") from None


def need_compilers() -> None:
    """Refuse a machine without compilers, which cmake says at length.

    Raises:
        NativeError: there is none for C or for C++.
    """
    if sys.platform == "win32":  # cmake finds Visual Studio's where no path leads to them
        return
    for language, (variable, names, debian, fedora) in _COMPILERS.items():
        given = words(variable)[:1]
        if not any(find(name) for name in given or names):
            missing = f"{variable}={given[0]}" if given else _alternatives(names)
            raise NativeError(
                f"no compiler for {language} ({missing}): install one (Debian: apt-get install "
                f"{debian}; Fedora: dnf install {fedora}; macOS: xcode-select --install) or set "
                f"{variable}"
            )


def need_python_headers() -> None:
    """Refuse a Python without headers, which the binding to a new build needs.

    Raises:
        NativeError: they are missing.
    """
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").is_file():
        raise NativeError(
            f"{folder} has no Python.h, which is needed once to bind to this build of ggml. "
            "Install Python's development headers (Debian: apt-get install python3-dev; "
            "Fedora: dnf install python3-devel)"
        )


def _alternatives(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}"
