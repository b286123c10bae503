"""Backends of ggml that a build may have: their options, and what they need on the machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import NativeError
from . import programs


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
    found: list[str] = []
    for name in kits:
        kit = KITS[name]
        if name == "metal" and sys.platform != "darwin":
            raise NativeError("Metal is a part of macOS, and this is none; leave out --metal")
        found.append(f"-D{kit.option}=ON")
        given = os.environ.get(kit.variable) if kit.variable else None
        if kit.compiler and not given:
            compiler = programs.find(kit.compiler, *kit.places)
            if compiler is None:
                raise NativeError(f"--{name} needs {kit.compiler}, which is missing: {kit.advice}")
            if name == "cuda":
                found.append(f"-DCMAKE_CUDA_COMPILER={compiler}")
    return found


def refuse_missing(said: str) -> None:
    """Refuse a machine without a package that cmake looked for, which it says at length.

    Args:
        said: by cmake, which failed.

    Raises:
        NativeError: this was the cause.
    """
    for match in re.finditer(r"Could NOT find (\S+)|not find a[^\"]+ provided by \"(\S+)\"", said):
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
