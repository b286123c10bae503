"""An installed ggml: its headers, libraries and version."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import ggml_choice as choice
from ..errors import NativeError
from ..platforms import machine as libraries
from . import contents

BASE = ("ggml.h", "ggml-alloc.h", "ggml-backend.h")
"""Headers of functions in every build of a version, in libggml-base and libggml."""

BACKENDS = ("ggml-cpu.h", "ggml-rpc.h")
"""Headers of functions that a build may lack: only types are used, see `Declarations.types`."""

BUNDLED = Path(__file__).resolve().parent / "ggml"
"""The ggml that a wheel may bring; an installation from source has none."""

_AGAIN = "install it again: pip install --force-reinstall ggmodel"


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
        return libraries.find(self.libraries, "ggml-base", self.version)

    @property
    def registry(self) -> Path:
        """The library of the backend registry, which depends on all others."""
        return libraries.find(self.libraries, "ggml", self.version)

    @property
    def backends(self) -> list[Path]:
        """The libraries of the backends, without the CPU variants that ggml chooses from."""
        names = libraries.names_in(self.libraries, "ggml-")
        backends = (n for n in names if n != "ggml-base" and not n.startswith("ggml-cpu-"))
        return [libraries.find(self.libraries, name, self.version) for name in backends]

    @property
    def variants(self) -> list[Path]:
        """The libraries of the CPU's functions of which ggml chooses one, by this processor."""
        return libraries.modules_in(self.libraries, "ggml-cpu-")

    def preload(self) -> list[Path]:
        """Load the libraries into this process and return those that the binding links to.

        By absolute path and in the order of their dependencies, so that each library finds its
        dependencies among the loaded ones, independent of the system's search paths.
        """
        problems: list[str] = []

        def load(path: Path, everywhere: bool) -> bool:
            try:
                libraries.load(path, everywhere)
            except OSError as error:
                problems.append(str(error))
                return False
            return True

        # The binding finds ggml in the global scope; backends stay out of it, because variants of
        # one backend share names.
        if load(self.base, True):
            for path in self.backends:
                load(path, False)
            if load(self.registry, True):
                return [self.base, self.registry]
        again = f"; {_AGAIN}" if self.path == BUNDLED else ""
        raise NativeError(f"cannot load ggml from {self.libraries}: {'; '.join(problems)}{again}")


def find() -> Prefix:
    """The ggml to use: $GGMODEL_GGML, the user's choice, or the installed one."""
    if not os.environ.get("GGMODEL_GGML") and (path := choice.chosen()) is not None:
        choice.need_processor(path)
        return at(path)
    return packaged()


@contextmanager
def advising() -> Iterator[None]:
    """Adds to errors of a ggml that the user chose how to go back."""
    try:
        yield
    except NativeError as error:
        if os.environ.get("GGMODEL_GGML") or choice.RESET in str(error):
            raise
        if choice.chosen() is None:
            raise
        raise NativeError(f"{error}. This ggml was chosen; {choice.RESET}") from error


def packaged() -> Prefix:
    """The ggml that a package is built with: $GGMODEL_GGML, the one that the wheel brought, or the
    one in libggml-python, on which an installation from source depends."""
    if prefix := os.environ.get("GGMODEL_GGML"):
        return at(Path(prefix))
    if BUNDLED.is_dir():
        try:
            contents.check(BUNDLED)
            return at(BUNDLED)
        except NativeError as error:
            raise NativeError(
                f"the ggml of this installation is damaged: {error}; {_AGAIN}"
            ) from error
    package = importlib.util.find_spec("libggml")
    if package is None or not package.submodule_search_locations:
        raise NativeError(
            f"ggml is not installed; {_AGAIN}, or set GGMODEL_GGML to the prefix of another build"
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
    places, base = libraries.places(path), libraries.file_name("ggml-base")
    for folder in places:
        if (folder / base).is_file():
            return Prefix(path, include, folder, _stated_version(folder))
    raise NativeError(
        f"no ggml in {path}: {base} is in none of "
        + ", ".join(dict.fromkeys(str(p) for p in places))
        + "; ggml must be built with -DBUILD_SHARED_LIBS=ON"
    )


def present(include: Path) -> list[str]:
    """The headers in `include` to read; those of `BASE` are required."""
    for name in BASE:
        if not (include / name).is_file():
            raise NativeError(f"{include} has no {name}: not the headers of a complete ggml")
    return [name for name in BASE + BACKENDS if (include / name).is_file()]


def _stated_version(folder: Path) -> str:
    """The version in the cmake files, which are installed together with the headers, and on Windows
    not beside the libraries."""
    folder = folder.with_name("lib") if folder.name == "bin" else folder
    path = folder / "cmake" / "ggml" / "ggml-config-version.cmake"
    try:
        match = re.search(
            r'^\s*set\(PACKAGE_VERSION "([^"]+)"\)', path.read_text(encoding="utf-8"), re.MULTILINE
        )
    except OSError as error:
        raise NativeError(f"{path} cannot be read, so the version is unknown: {error}") from error
    if match is None:
        raise NativeError(f"{path} states no version")
    return match[1]
