"""A machine with programs that build a ggml in no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ggmodel import native
from ggmodel.builds import requirements

# A cmake and a ninja that record their arguments and fail if BREAKS says so, with the words
# in SAYS. To install is to copy the ggml in GGML.
PROGRAM = """#!/bin/sh
echo "$*" >> "$NOTES"
case "$*" in *"$BREAKS"*) echo "${SAYS:-it went wrong}"; exit 1;; esac
echo "[1/2] one"
echo "[2/2] two"
while [ $# -gt 1 ]; do
    [ "$1" = --prefix ] && cp -r "$GGML" "$2"
    [ "$1" = -B ] && mkdir -p "$2"
    shift
done
exit 0
"""


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder, empty; nothing is chosen, and no option given."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("GGMODEL_GGML", "CMAKE_ARGS", "CUDACXX", "CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "data" / "ggmodel"


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A source package."""
    inner = tmp_path / "package" / "vendor" / "llama.cpp"
    inner.mkdir(parents=True)
    (inner / "CMakeLists.txt").touch()
    return tmp_path / "package"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """These programs; `notes()` is the record of cmake and ninja."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cmake", "ninja", "cc", "c++", "nvcc", "glslc"):
        (tools / name).write_text(PROGRAM)
        (tools / name).chmod(0o755)

    def find(name: str, *places: Path) -> str | None:
        return str(tools / name) if (tools / name).exists() else None

    monkeypatch.setattr(requirements, "find_program", find)
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("BREAKS", "never")
    monkeypatch.setenv("GGML", str(native.prefix))
    return lambda: (tmp_path / "notes").read_text().splitlines()
