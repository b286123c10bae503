"""The ggml of a wheel: what is built, kept and listed. `make test-wheel` builds and runs one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import wheel

from ggmodel.builds import builder, requirements
from ggmodel.native import contents

# A cmake and a ninja that configure two libraries and install what is in GGML.
PROGRAM = """#!/bin/sh
while [ $# -gt 1 ]; do
    [ "$1" = --prefix ] && cp -r "$GGML" "$2"
    [ "$1" = -B ] && cp "$COMMANDS" "$2"
    shift
done
exit 0
"""
VARIANTS = {"x64": "", "haswell": "-DGGML_AVX2 -DGGML_FMA", "armv8.2_1": "-DGGML_USE_DOTPROD"}


@pytest.fixture
def llama_cpp(tmp_path: Path) -> Path:
    """A source of ggml, of which one file has another author."""
    sources = tmp_path / "source" / "ggml" / "src" / "ggml-cpu"
    sources.mkdir(parents=True)
    (sources.parents[2] / "LICENSE").write_text("MIT License\n")
    (sources / "sgemm.cpp").write_text("// Copyright 2024 A Foundation\n// copyright is no notice")
    return sources.parents[2]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A ggml as cmake installs it."""
    done = tmp_path / "installed"
    names = ["include/ggml.h", "lib/libggml.so", builder.STAMP, "lib/pkgconfig/ggml.pc"]
    names += [f"lib/cmake/ggml/ggml-config{part}.cmake" for part in ("", "-version")]
    for name in names:
        (done / name).parent.mkdir(parents=True, exist_ok=True)
        (done / name).write_text(name)
    return done


def test_the_instructions_of_each_library_are_those_beyond_the_base(tmp_path: Path) -> None:
    commands = [
        {"command": f"c++ -DGGML_BACKEND_DL {defined} -o ggml-cpu-{name}-feats.dir/f.o -c f.cpp"}
        for name, defined in VARIANTS.items()
    ]
    commands.append({"command": "cc -DGGML_AVX512 -o src/ggml-base.dir/f.o -c f.c"})
    path = tmp_path / "compile_commands.json"
    path.write_text(json.dumps(commands))
    assert wheel._instructions(path) == {
        "libggml-cpu-x64.so": [],
        "libggml-cpu-haswell.so": ["AVX2", "FMA"],
        "libggml-cpu-armv8.2_1.so": ["DOTPROD"],
    }


def test_what_is_kept_is_listed(prefix: Path, llama_cpp: Path) -> None:
    wheel._keep(prefix, llama_cpp, {"libggml-cpu-haswell.so": ["AVX2"]})
    files, instructions = contents._read(prefix)
    assert set(files) == {
        "LICENSE",
        "include/ggml.h",
        "lib/cmake/ggml/ggml-config-version.cmake",
        "lib/libggml.so",
    }
    assert files["lib/libggml.so"] == len("lib/libggml.so")
    assert instructions == {"libggml-cpu-haswell.so": ["AVX2"]}
    contents.check(prefix)
    left = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
    assert left == {*files, contents.NAME, builder.STAMP}


def test_a_build_has_the_list_and_replaces_the_one_before(
    tmp_path: Path, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, commands = tmp_path / "program", tmp_path / "compile_commands.json"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    entries = [
        {"command": f"c++ {defined} -o ggml-cpu-{name}-feats.dir/f.o -c f.cpp"}
        for name, defined in VARIANTS.items()
    ]
    commands.write_text(json.dumps(entries))
    unpacked = tmp_path / "package" / "vendor" / "llama.cpp"
    (unpacked / "ggml" / "src").mkdir(parents=True)
    for name in ("CMakeLists.txt", "LICENSE"):
        (unpacked / name).write_text("MIT License\n")
    monkeypatch.setattr(requirements, "find_program", lambda name, *places: str(program))
    for variable, path in {
        "GGML": prefix,
        "COMMANDS": commands,
        "GGMODEL_PEERS": tmp_path / "package",
    }.items():
        monkeypatch.setenv(variable, str(path))
    folder = tmp_path / "ggml"
    folder.mkdir()
    (folder / "built-0.0.1").touch()
    wheel.build_ggml(folder)
    contents.check(folder)
    assert contents._read(folder)[1]["libggml-cpu-haswell.so"] == ["AVX2", "FMA"]
    assert (folder / builder.STAMP).is_file()
    assert not (folder / "built-0.0.1").exists()
    assert [path.name for path in tmp_path.glob("ggml*")] == ["ggml"]


def test_the_licence_names_the_other_authors(llama_cpp: Path) -> None:
    text = wheel._licence(llama_cpp)
    assert text.startswith("MIT License\n")
    assert text.endswith("\nggml/src/ggml-cpu/sgemm.cpp: Copyright 2024 A Foundation\n")


@pytest.mark.skipif(os.name == "nt", reason="a library there is told apart by another option")
def test_the_libraries_are_for_every_processor_and_find_each_other(tmp_path: Path) -> None:
    options = wheel._options(tmp_path / "source", tmp_path / "work")
    for option in ("-DGGML_NATIVE=OFF", "-DGGML_BACKEND_DL=ON", "-DGGML_CPU_ALL_VARIANTS=ON"):
        assert option in options
    place = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    assert f"-DCMAKE_INSTALL_RPATH={place}" in options
    [flags] = [option for option in options if option.startswith("-DCMAKE_C_FLAGS=")]
    assert f"-ffile-prefix-map={tmp_path / 'source'}=ggml" in flags


def test_a_wheel_without_a_repository_has_a_fixed_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = subprocess.run(
        ["git", "-C", str(wheel.ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True
    )
    if committed.returncode == 0:
        assert wheel._last_change() == int(committed.stdout)
    monkeypatch.setattr(wheel, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert wheel._last_change() == 315532800


@pytest.mark.parametrize("arguments", [[], ["ggml"], ["build", "folder"], ["fly", "folder"]])
def test_other_arguments_show_the_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"python tools/wheel\.py ggml FOLDER"):
        wheel.main(arguments)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("mine")
    (tmp_path / "source" / "vendor" / "llama.cpp").mkdir(parents=True)
    (tmp_path / "source" / "vendor" / "llama.cpp" / "CMakeLists.txt").touch()
    command = [sys.executable, "tools/wheel.py", "ggml", str(tmp_path)]
    environment = os.environ | {"GGMODEL_PEERS": str(tmp_path / "source")}
    done = subprocess.run(
        command, cwd=wheel.ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "has something else in it than an earlier build" in done.stderr
    assert (tmp_path / "letters").read_text() == "mine"
