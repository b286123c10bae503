"""An installed ggml: its headers, libraries and version."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from ..errors import NativeError

BASE = ("ggml.h", "ggml-alloc.h", "ggml-backend.h")
"""Headers of functions in every build of a version, in libggml-base and libggml."""

BACKENDS = ("ggml-cpu.h", "ggml-rpc.h")
"""Headers of functions that a build may lack: only types are used, see `Declarations.types`."""

_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"


@dataclass(frozen=True)
class Prefix:
    """An installed ggml.

    Attributes:
        path: the folder that holds include/ and lib/ (or lib64/).
        include: the folder of the headers.
        libraries: the folder of the shared libraries.
        version: the version its cmake files state, such as "0.20.2".
    """

    path: Path
    include: Path
    libraries: Path
    version: str

    @property
    def base(self) -> Path:
        """The library of tensors, graphs and allocators."""
        return self.libraries / f"libggml-base{_SUFFIX}"

    @property
    def registry(self) -> Path:
        """The library of the backend registry, which depends on all others."""
        return self.libraries / f"libggml{_SUFFIX}"

    @property
    def backends(self) -> list[Path]:
        """The libraries of the backends, without the CPU variants that ggml chooses from."""
        found = sorted(self.libraries.glob(f"libggml-*{_SUFFIX}"))
        return [p for p in found if p != self.base and not p.name.startswith("libggml-cpu-")]

    def preload(self) -> list[Path]:
        """Load the libraries into this process and return those that the binding links to.

        By absolute path and in the order of their dependencies, so that each library finds its
        dependencies among the loaded ones, independent of the system's search paths.
        """
        problems: list[str] = []

        def load(path: Path, mode: int) -> bool:
            try:
                ctypes.CDLL(str(path), mode=mode | os.RTLD_NOW)
            except OSError as error:
                problems.append(str(error))
                return False
            return True

        # The binding finds ggml in the global scope; backends stay out of it, because variants of
        # one backend share names.
        if load(self.base, os.RTLD_GLOBAL):
            for path in self.backends:
                load(path, os.RTLD_LOCAL)
            if load(self.registry, os.RTLD_GLOBAL):
                return [self.base, self.registry]
        raise NativeError(f"cannot load ggml from {self.libraries}: " + "; ".join(problems))


def find() -> Prefix:
    """The ggml to use: $GGMODEL_GGML, or the one in the package libggml-python."""
    chosen = os.environ.get("GGMODEL_GGML")
    if chosen:
        return at(Path(chosen))
    package = importlib.util.find_spec("libggml")
    if package is None or not package.submodule_search_locations:
        raise NativeError(
            "ggml is not installed: pip install libggml-python, or set GGMODEL_GGML to the prefix "
            "of another build"
        )
    return at(Path(package.submodule_search_locations[0]))


def at(path: Path) -> Prefix:
    """The ggml that is installed in the folder `path`."""
    path = path.expanduser().resolve()
    if not path.is_dir():
        raise NativeError(f"no ggml in {path}: the folder does not exist (see GGMODEL_GGML)")
    include = path / "include"
    if not (include / "ggml.h").is_file():
        raise NativeError(
            f"no ggml in {path}: include/ggml.h is missing. GGMODEL_GGML takes the folder that "
            "`cmake --install` wrote to, with headers and libraries"
        )
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    places = [path / "lib64", path / "lib", path / "lib" / multiarch]
    for libraries in places:
        if (libraries / f"libggml-base{_SUFFIX}").is_file():
            return Prefix(path, include, libraries, _stated_version(libraries))
    raise NativeError(
        f"no ggml in {path}: libggml-base{_SUFFIX} is in none of "
        + ", ".join(dict.fromkeys(str(p) for p in places))
        + "; ggml must be built with -DBUILD_SHARED_LIBS=ON"
    )


def present(include: Path) -> list[str]:
    """The headers in `include` to read; those of `BASE` are required."""
    for name in BASE:
        if not (include / name).is_file():
            raise NativeError(f"{include} has no {name}: not the headers of a complete ggml")
    return [name for name in BASE + BACKENDS if (include / name).is_file()]


def _stated_version(libraries: Path) -> str:
    """The version in the cmake files, which are installed together with the headers."""
    path = libraries / "cmake" / "ggml" / "ggml-config-version.cmake"
    try:
        match = re.search(r'^\s*set\(PACKAGE_VERSION "([^"]+)"\)', path.read_text(), re.MULTILINE)
    except OSError as error:
        raise NativeError(f"{path} cannot be read, so the version is unknown: {error}") from error
    if match is None:
        raise NativeError(f"{path} states no version")
    return match[1]
