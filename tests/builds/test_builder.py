"""Builds that go wrong: interrupted, crowded, without room. tests/tools has good ones."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ggmodel import ggml_choice as choice
from ggmodel.builds import builder
from ggmodel.errors import NativeError

Notes = Callable[[], list[str]]


def root(unpacked: Path) -> Path:
    return builder.source_folder(unpacked, unpacked)


def test_progress_follows_what_ninja_says(tmp_path: Path, unpacked: Path, notes: Notes):
    said: list[tuple[float, str]] = []
    builder.build_ggml(
        tmp_path / "ggml",
        ["-DGGML_BLAS=ON"],
        root=root(unpacked),
        progress=lambda share, what: said.append((share, what)),
    )
    shares = [share for share, _ in said]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1
    assert [what for _, what in said] == ["configuring", "compiling", "compiling", "installing"]
    assert choice.read_stamp(tmp_path / "ggml") == choice.Stamp(
        builder.STAMP.removeprefix("built-"), ["-DGGML_BLAS=ON"]
    )
    assert "-DGGML_BLAS=ON" in notes()[0]


def test_a_build_that_computes_wrongly_leaves_the_one_before(
    tmp_path: Path, unpacked: Path, notes: Notes
):
    def refuse(done: Path) -> None:
        assert (done / "include" / "ggml.h").is_file()
        raise NativeError("it computes wrongly")

    folder = tmp_path / "ggml"
    folder.mkdir()
    (folder / "built-0.0.1").touch()
    with pytest.raises(NativeError, match="it computes wrongly"):
        builder.build_ggml(folder, root=root(unpacked), check=refuse)
    assert [path.name for path in folder.iterdir()] == ["built-0.0.1"]


def test_two_builds_of_one_folder_do_not_mix(tmp_path: Path, unpacked: Path, notes: Notes):
    work = tmp_path / "ggml.building"
    work.mkdir()
    with builder.alone(work), pytest.raises(NativeError, match="another process is building in"):
        builder.build_ggml(tmp_path / "ggml", root=root(unpacked))
    builder.build_ggml(tmp_path / "ggml", root=root(unpacked))


def test_a_folder_with_something_else_is_not_replaced(tmp_path: Path, unpacked: Path, notes: Notes):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").touch()
    (tmp_path / "file").touch()
    for name in ("mine", "file"):
        with pytest.raises(NativeError, match="something else in it"):
            builder.build_ggml(tmp_path / name, root=root(unpacked))


def test_a_full_disk_is_said_before_anything_is_built(
    tmp_path: Path, unpacked: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
):
    full = shutil.disk_usage(tmp_path)._replace(free=5 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(NativeError, match=r"has 5 MiB left, but a build needs 512; make room"):
        builder.build_ggml(tmp_path / "ggml", root=root(unpacked))
    assert not (tmp_path / "notes").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, unpacked: Path, notes: Notes):
    (tmp_path / "file").touch()
    with pytest.raises(NativeError, match=r"cannot build in .*file/ggml.building: Not a directory"):
        builder.build_ggml(tmp_path / "file" / "ggml", root=root(unpacked))


def test_an_interruption_ends_the_programs():
    """The compiler would go on otherwise, unseen."""
    code = "import time; print('[1/2]', flush=True); time.sleep(60)"

    def interrupted(line: str) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        builder._run([sys.executable, "-c", code], interrupted)
    assert time.monotonic() - began < 50  # it was not waited for


@pytest.mark.parametrize(
    ("name", "variable", "message"),
    [
        ("c++", "", r"no compiler for C\+\+ \(c\+\+, g\+\+ or clang\+\+\): install one"),
        ("cc", "CC", "no compiler for C .CC=no-such-compiler.: install one"),
    ],
)
def test_a_missing_compiler_is_named(
    tmp_path: Path,
    unpacked: Path,
    notes: Notes,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    variable: str,
    message: str,
):
    if variable:
        monkeypatch.setenv(variable, "no-such-compiler -O3")
    else:
        (tmp_path / "tools" / name).unlink()
    with pytest.raises(NativeError, match=message):
        builder.build_ggml(tmp_path / "ggml", root=root(unpacked))


class TestSource:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """Commands of pip, which leaves a file that is another one than expected."""
        commands: list[list[str]] = []

        def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            target = Path(command[command.index("--dest") + 1])
            (target / f"{builder._PACKAGE}.tar.gz").write_bytes(b"something else")
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(builder.subprocess, "run", run)
        return commands

    def test_another_package_is_refused(self, tmp_path: Path, asked: list[list[str]]):
        with pytest.raises(NativeError, match=r"another .*\.tar\.gz than the one known here"):
            builder.source_folder(tmp_path / "cache")
        assert "--no-binary" in asked[0] and asked[0][-1] == "llama-cpp-python==0.3.36"
        assert list((tmp_path / "cache").iterdir()) == []

    @pytest.mark.parametrize("filters", [True, False])
    def test_every_python_unpacks_it(
        self, tmp_path: Path, unpacked: Path, monkeypatch: pytest.MonkeyPatch, filters: bool
    ):
        """Debian 12's, 3.11.2, has no filters."""
        made = tmp_path / "made.tar.gz"
        with tarfile.open(made, "w:gz") as archive:
            archive.add(unpacked, builder._PACKAGE)

        def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            shutil.copy(
                made, Path(command[command.index("--dest") + 1]) / f"{builder._PACKAGE}.tar.gz"
            )
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(builder.subprocess, "run", run)
        monkeypatch.setattr(builder, "SHA256", hashlib.sha256(made.read_bytes()).hexdigest())
        if not filters:
            monkeypatch.delattr(tarfile, "data_filter", raising=False)
        assert (builder.source_folder(tmp_path / "cache") / "CMakeLists.txt").is_file()

    @pytest.mark.parametrize(
        ("said", "message"),
        [
            ("No module named pip", "has no pip, .* -m ensurepip"),
            ("no network", r"no network\n\nthe source of ggml, .* cannot be downloaded"),
        ],
    )
    def test_what_pip_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, message: str
    ):
        failed = subprocess.CompletedProcess([], 1, "", said)
        monkeypatch.setattr(builder.subprocess, "run", lambda *_, **__: failed)
        with pytest.raises(NativeError, match=message):
            builder.source_folder(tmp_path / "cache")


@pytest.mark.parametrize("takes", [True, False])
def test_stores_that_gcc_would_drop_are_kept(
    takes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\nexit {0 if takes else 1}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    kept = "-DCMAKE_CXX_FLAGS_RELEASE=-O3 -DNDEBUG -fno-tree-dse -fno-dse"
    expected = [kept] if takes else []
    assert builder._kept_stores() == expected
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    assert builder._kept_stores() == []
