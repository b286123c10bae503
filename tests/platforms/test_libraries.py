"""Names and places of libraries, and standard streams, on macOS and Windows."""

from __future__ import annotations

import ctypes
import importlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ggmodel.cli import ending
from ggmodel.native import headers, install
from ggmodel.platforms import machine

On = Callable[[str], pytest.MonkeyPatch]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    """`on("win32")` makes the module what it would be there."""

    def start(system: str) -> pytest.MonkeyPatch:
        monkeypatch.setattr(sys, "platform", system)
        if system == "win32":
            for name in ("RTLD_NOW", "RTLD_GLOBAL", "RTLD_LOCAL"):
                monkeypatch.delattr(os, name)
        importlib.reload(machine)
        return monkeypatch

    yield start
    monkeypatch.undo()
    importlib.reload(machine)


def prefix(folder: Path, *names: str) -> Path:
    """A ggml as a wheel installs it; files without contents."""
    version = folder / "lib" / "cmake" / "ggml" / "ggml-config-version.cmake"
    for path in (version, *(folder / name for name in ("include/ggml.h", *names))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    version.write_text('set(PACKAGE_VERSION "0.20.2")\n')
    return folder


def test_macos_has_a_copy_for_each_name(on: On, tmp_path: Path):
    """Libraries name each other with a number: to load another copy would be a second ggml."""
    parts = ("ggml", "ggml-base", "ggml-cpu", "ggml-metal")
    numbers = ("", ".0", ".0.20.2")
    made = prefix(tmp_path, *(f"lib/lib{part}{n}.dylib" for part in parts for n in numbers))
    on("darwin")
    found = install.at(made)
    assert [p.name for p in (found.base, found.registry, *found.backends)] == [
        "libggml-base.0.dylib", "libggml.0.dylib", "libggml-cpu.0.dylib", "libggml-metal.0.dylib",
    ]  # fmt: skip
    assert machine.linking(made, ["ggml"]) == ["-fPIC", "-bundle", "-undefined", "dynamic_lookup"]


@pytest.mark.parametrize("folder", ["bin", "lib"])
def test_windows_has_libraries_beside_its_programs(on: On, tmp_path: Path, folder: str):
    parts = ("ggml", "ggml-base", "ggml-cpu")
    made = prefix(tmp_path, *(f"{folder}/{part}.dll" for part in parts), "lib/ggml.lib")
    patch = on("win32")
    found = install.at(made)
    assert found.version == "0.20.2"
    assert [p.name for p in (found.base, found.registry, *found.backends)] == [
        "ggml-base.dll", "ggml.dll", "ggml-cpu.dll",
    ]  # fmt: skip
    places: list[str] = []
    loaded: list[str] = []
    patch.setattr(os, "add_dll_directory", places.append, raising=False)
    patch.setattr(ctypes, "CDLL", loaded.append)
    found.preload()
    assert set(places) == {str(made / folder)}
    assert loaded == [str(p) for p in (found.base, *found.backends, found.registry)]


def test_windows_links_by_name(on: On, tmp_path: Path):
    """MSVC's import libraries, or MinGW's."""
    made = prefix(tmp_path, "lib/ggml-base.lib", "lib/libggml.dll.a")
    patch = on("win32")
    patch.setattr(sys, "base_prefix", "/python")
    assert machine.linking(made, ["ggml-base", "ggml"]) == [
        "-shared",
        str(made / "lib/ggml-base.lib"),
        str(made / "lib/libggml.dll.a"),
        "/python/libs/python3.lib",
    ]
    assert machine.BINDING_SUFFIX == ".pyd"
    assert machine.CUDA_DRIVER == "nvcuda.dll"


def test_the_compiler_of_windows(on: On):
    patch = on("win32")
    patch.delenv("CC", raising=False)
    patch.setattr(shutil, "which", lambda name: name if name == "gcc" else None)
    importlib.reload(machine)
    patch.setattr(headers, "default_compiler", machine.default_compiler)
    assert headers.compiler() == ["gcc"]
    patch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.default_compiler() == "clang"
    patch.setenv("CC", r"C:\tools\clang.exe")
    assert headers.compiler() == [r"C:\tools\clang.exe"]


@pytest.mark.parametrize(("chosen", "wanted"), [(None, "utf-8"), ("cp1252", "cp1252")])
def test_files_of_windows_get_all_characters(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, wanted: str
):
    """Where standard output is no console it has the encoding of the country."""
    streams: list[Any] = [io.TextIOWrapper(io.BytesIO(), encoding="cp1252") for _ in range(3)]
    for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(ending.processes, "NAMED_STREAMS", False)
    monkeypatch.setattr(ending.processes, "ENDING", ())
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    if chosen:
        monkeypatch.setenv("PYTHONIOENCODING", chosen)
    ending.prepare()
    assert [stream.encoding for stream in streams] == [wanted] * 3
    print("猫")
    sys.stdout.flush()
    assert streams[1].buffer.getvalue() == "猫\n".encode(wanted, "replace")
