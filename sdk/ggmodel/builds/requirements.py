"""Requirements of a build: programs and backends, and how missing ones are installed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import NativeError
from ..imports import install_command

_COMPILERS = {
    "C": ("CC", ("cc", "gcc", "clang"), "gcc", "gcc"),
    "C++": ("CXX", ("c++", "g++", "clang++"), "g++", "gcc-c++"),
}


def find_program(name: str, *places: Path) -> str | None:
    """A program of this Python's environment, of the system, or in other folders."""
    own = (Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))
    path = [*map(str, own), os.environ.get("PATH", os.defpath), *map(str, places)]
    return shutil.which(name, path=os.pathsep.join(path))


def need_builder(name: str) -> str:
    """cmake or ninja.

    Raises:
        NativeError: it is missing.
    """
    if path := find_program(name):
        return path
    raise NativeError(
        f"{name} is missing; the extra `build` brings it: "
        f"{sys.executable} -m {install_command('build')}"
    )


def words(variable: str) -> list[str]:
    """The words of an environment variable, as a shell splits them.

    Raises:
        NativeError: a quotation mark is left open.
    """
    value = os.environ.get(variable, "")
    try:
        return shlex.split(value)
    except ValueError as error:
        raise NativeError(f"{variable} is {value!r:.80}: {error}; close it, or unset it") from None


def need_compilers() -> None:
    """Refuse a machine without compilers, which cmake says at length.

    Raises:
        NativeError: there is none for C or for C++.
    """
    if sys.platform == "win32":  # cmake finds Visual Studio's where no path leads to them
        return
    for language, (variable, names, debian, fedora) in _COMPILERS.items():
        command = words(variable)[:1]
        if not any(find_program(name) for name in command or names):
            missing = f"{variable}={command[0]}" if command else _alternatives(names)
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


@dataclass(frozen=True)
class Kit:
    """A backend.

    Attributes:
        option: of cmake, without its value.
        compiler: the program that compiles its kernels, or "".
        variable: of cmake and the environment, which may name that compiler.
        places: folders to look in beside the usual ones.
        packages: the names of what cmake looks for.
        advice: how to install what it needs.
    """

    option: str
    compiler: str = ""
    variable: str = ""
    places: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    advice: str = ""


KITS = {
    "cuda": Kit(
        "GGML_CUDA",
        "nvcc",
        "CUDACXX",
        (Path("/usr/local/cuda/bin"),),
        advice="install NVIDIA's CUDA toolkit",
    ),
    "vulkan": Kit(
        "GGML_VULKAN",
        "glslc",
        packages=("Vulkan", "SPIRV-Headers"),
        advice="install it (Debian: apt-get install glslc libvulkan-dev spirv-headers; Fedora: dnf "
        "install glslc vulkan-loader-devel vulkan-headers spirv-headers-devel) or LunarG's SDK",
    ),
    "metal": Kit("GGML_METAL"),
}

# The first headers with a type that ggml uses.
_VULKAN_NEEDS, _VULKAN_SINCE = "LayerSettingTypeEXT", "1.3.272"


def options(kits: Sequence[str]) -> list[str]:
    """The options of cmake for some backends.

    Raises:
        NativeError: the machine lacks what one needs.
    """
    settings: list[str] = []
    for name in kits:
        kit = KITS[name]
        if name == "metal" and sys.platform != "darwin":
            raise NativeError("Metal is a part of macOS, and this is none; leave out --metal")
        settings.append(f"-D{kit.option}=ON")
        compiler_path = os.environ.get(kit.variable) if kit.variable else None
        if kit.compiler and not compiler_path:
            compiler = find_program(kit.compiler, *kit.places)
            if compiler is None:
                raise NativeError(f"--{name} needs {kit.compiler}, which is missing: {kit.advice}")
            if name == "cuda":
                settings.append(f"-DCMAKE_CUDA_COMPILER={compiler}")
    return settings


def refuse_missing(output: str) -> None:
    """Refuse a machine without a package that cmake looked for, which it says at length.

    Args:
        output: by cmake, which failed.

    Raises:
        NativeError: this was the cause.
    """
    for match in re.finditer(
        r"Could NOT find (\S+)|not find a[^\"]+ provided by \"(\S+)\"", output
    ):
        package = match[1] or match[2]
        for name, kit in KITS.items():
            if package in kit.packages:
                raise NativeError(
                    f"--{name} needs {package}, which cmake cannot find: {kit.advice}"
                )


def check_configuration(work: Path) -> None:
    """Refuse, before minutes of compiling, what ggml does not compile with.

    Raises:
        NativeError: Vulkan's headers are too old.
    """
    try:
        cached = (work / "CMakeCache.txt").read_text(errors="replace")
    except FileNotFoundError:
        return
    if not re.search(r"^GGML_VULKAN:BOOL=(ON|1|TRUE|YES)$", cached, re.MULTILINE | re.IGNORECASE):
        return
    place = re.search(r"^Vulkan_INCLUDE_DIR:\w+=(.+)$", cached, re.MULTILINE)
    headers = Path(place[1] if place else "/usr/include") / "vulkan"
    texts = [p.read_text(errors="replace") for p in sorted(headers.glob("vulkan*.hpp"))]
    if any(_VULKAN_NEEDS in text for text in texts):
        return
    raise NativeError(
        f"the headers of Vulkan in {headers} lack {_VULKAN_NEEDS}, which ggml needs: take those of "
        f"Vulkan {_VULKAN_SINCE} or later (Debian 13's libvulkan-dev, LunarG's SDK) and name their "
        "folder: -DVulkan_INCLUDE_DIR=FOLDER"
    )
