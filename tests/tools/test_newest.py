"""The newest ggml that a package carries: its build, and the models on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tools import newest

from ggmodel import native
from ggmodel.builds import requirements
from ggmodel.errors import NativeError

ROOT = Path(__file__).parents[2]
STAMP = f"built-{newest.VERSION}"

# One size of batches, texts with and without images, weights in F32, F16 and Q8_0, embeddings.
# The numbers are sizes of batches; long images are the slowest and need no other op.
REPRESENTATIVE = """
    (any_batch_split and 512 and not long_images)
    or (rounded_weights and (plain_gqa or experts or every_6th or images))
    or (any_batch_split and images and start)
    or (test_embeddings and 512)
    or what_the_tower or what_is_seen
"""

# A cmake and a ninja that record their arguments and fail if BREAKS says so.
PROGRAM = """#!/bin/sh
echo "$*" >> "$NOTES"
case "$*" in *"$BREAKS"*) echo "it went wrong"; exit 1;; esac
while [ $# -gt 1 ]; do
    [ "$1" = --prefix ] && mkdir -p "$2/lib"
    [ "$1" = -B ] && mkdir -p "$2"
    shift
done
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A machine with that cmake and a source package; `notes()` is the record of cmake."""
    tools, llama_cpp = tmp_path / "bin", tmp_path / "source" / "vendor" / "llama.cpp"
    for folder in (tools, llama_cpp):
        folder.mkdir(parents=True)
    (llama_cpp / "CMakeLists.txt").touch()
    for name, text in {"python": "", "ninja": PROGRAM, "cmake": PROGRAM}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    monkeypatch.setenv("GGMODEL_PEERS", str(tmp_path / "source"))
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("BREAKS", "never")
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    return lambda: (tmp_path / "notes").read_text().splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the build of another version."""
    folder = tmp_path / "ggml"
    folder.mkdir()
    (folder / "built-0.0.1").touch()
    return folder


def test_a_build_replaces_the_one_before(folder: Path, notes: Callable[[], list[str]]):
    newest.build_ggml(folder)
    assert sorted(path.name for path in folder.iterdir()) == [STAMP, "lib"]
    assert [path.name for path in folder.parent.glob("ggml*")] == ["ggml"]
    configured, built, installed = notes()
    for option in ("GGML_NATIVE=ON", "GGML_RPC=ON", "GGML_OPENMP=OFF", "BUILD_SHARED_LIBS=ON"):
        assert f" -D{option}" in configured
    assert built.endswith(f"-j{len(os.sched_getaffinity(0))} ggml")
    assert installed.startswith("--install")


@pytest.mark.parametrize("step", ["-G", "-C", "--install"])
def test_a_build_that_fails_leaves_the_one_before(
    folder: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, step: str
):
    monkeypatch.setenv("BREAKS", step)
    with pytest.raises(NativeError, match=re.compile(f"it went wrong.*{step}.* failed", re.DOTALL)):
        newest.build_ggml(folder)
    assert [path.name for path in folder.iterdir()] == ["built-0.0.1"]
    monkeypatch.setenv("BREAKS", "never")
    newest.build_ggml(folder)
    assert (folder / STAMP).exists()


def test_benchmarks_are_built_in_place(tmp_path: Path, notes: Callable[[], list[str]]):
    newest.build_peer(tmp_path / "peer")
    assert (tmp_path / "peer" / STAMP).exists()
    configured, built = notes()
    assert "GGML_RPC" not in configured and "GGML_OPENMP" not in configured
    programs = "llama-bench llama-batched-bench llama-completion llama-server"
    assert built.endswith(f" {programs}")


def test_libraries_are_built_without_programs(tmp_path: Path, notes: Callable[[], list[str]]):
    newest.build_mtmd(tmp_path / "llama.cpp")
    assert (tmp_path / "llama.cpp" / STAMP).exists()
    assert notes()[1].endswith(" mtmd")


def test_benchmarks_that_failed_are_not_finished(
    tmp_path: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
):
    newest.build_peer(tmp_path / "peer")
    monkeypatch.setenv("BREAKS", "-j")
    with pytest.raises(NativeError, match="it went wrong"):
        newest.build_peer(tmp_path / "peer")
    assert not (tmp_path / "peer" / STAMP).exists()


def test_options_of_ones_own_have_the_last_word(
    folder: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=ON '-DCMAKE_C_FLAGS=-O3 -g'")
    newest.build_ggml(folder)
    assert notes()[0].endswith("-DGGML_CUDA=ON -DCMAKE_C_FLAGS=-O3 -g")


def test_a_missing_program_is_named(
    folder: Path, tmp_path: Path, notes: object, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "bin" / "cmake").unlink()
    monkeypatch.setattr(requirements, "need_compilers", lambda: None)
    monkeypatch.setattr(requirements.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeError, match=r"cmake is missing; .* -m pip install 'cmake>=.*ninja"):
        newest.build_ggml(folder)


def test_a_package_without_llama_cpp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GGMODEL_PEERS", str(tmp_path))
    with pytest.raises(NativeError, match=r"llama\.cpp has no llama\.cpp; name the folder of an"):
        newest.source(tmp_path / "cache")


@pytest.mark.slow
def test_models_are_the_same_on_another_ggml(rpc_environment: dict[str, str]):
    """The goldens pass on another version of ggml as well."""
    code = "from ggmodel import native; print(native.version)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/golden"]
    selected = " ".join(REPRESENTATIVE.split())

    def run(*arguments: str) -> str:
        done = subprocess.run(
            arguments, cwd=ROOT, env=rpc_environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        return done.stdout

    assert run(sys.executable, "-c", code).strip() != native.version
    passed = re.search(r"^(\d+) passed", run(*command, "-k", selected), re.MULTILINE)
    assert passed and int(passed[1]) > 50
