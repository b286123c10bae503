"""A wheel with its own ggml, in an environment that has only what the wheel asks for.

`make test-wheel` builds the wheel and runs this, with GGMODEL_TEST_WHEEL as its file.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import ggmodel
from ggmodel import native
from ggmodel.platforms import processor

ROOT = Path(__file__).parents[2]
PACKAGE = Path(ggmodel.__file__).resolve().parent
STORIES = ROOT / "examples" / "assets" / "stories.gguf"
GGML = PACKAGE / "native" / "ggml"
DEADLINE = 60  # seconds of a process
MOST = 40 << 20  # bytes of the wheel


@pytest.fixture(scope="module")
def wheel() -> Path:
    return Path(os.environ["GGMODEL_TEST_WHEEL"])


def start(
    package: Path, code: str, cwd: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, with the package in this folder."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(package.parent)} | variables,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, to be damaged."""
    return shutil.copytree(PACKAGE, tmp_path / "copy" / "ggmodel")


@pytest.fixture
def compile_library(tmp_path: Path) -> Callable[[Path, str], None]:
    """`compile_library(path, code)` makes a library of C code."""

    def compile_library(path: Path, code: str) -> None:
        source = tmp_path / "library.c"
        source.write_text(code)
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)

    return compile_library


def test_nothing_comes_from_elsewhere() -> None:
    assert PACKAGE.is_relative_to(Path(sys.prefix).resolve())
    assert native.prefix == GGML
    assert Path(native.describe()["module"]).resolve().parent == PACKAGE / "native"
    assert importlib.util.find_spec("libggml") is None
    required = importlib.metadata.requires("ggmodel") or []
    assert "numpy>=1.24" in required
    assert not [name for name in required if "libggml" in name]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="sees libraries in /proc")
def test_one_library_of_the_cpus_functions_is_in_use() -> None:
    loaded = set(re.findall(r"/\S*libggml\S*", Path("/proc/self/maps").read_text()))
    assert {Path(path).parent for path in loaded} == {GGML / "lib"}
    names = {Path(path).name for path in loaded}
    assert len([name for name in names if name.startswith("libggml-cpu-")]) == 1
    assert names > {"libggml-base.so", "libggml.so", "libggml-rpc.so"}


def test_it_is_the_best_one_for_this_processor() -> None:
    assert processor.missing(native.features()) == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="features have the names of x86-64's")
@pytest.mark.parametrize("name", ["x64", "sse42", "sandybridge", "haswell", "skylakex", "zen4"])
def test_each_library_computes_the_same_or_says_what_it_needs(name: str, tmp_path: Path) -> None:
    libraries = shutil.copytree(GGML, tmp_path / "ggml") / "lib"
    for library in libraries.glob("libggml-cpu-*.so"):
        if library.name != f"libggml-cpu-{name}.so":
            library.unlink()
    code = f"""
import ggmodel
with ggmodel.load({str(STORIES)!r}) as model:
    print(model.generate("Once upon a time", max_tokens=8, temperature=0))
"""
    done = start(PACKAGE, code, tmp_path, GGMODEL_GGML=str(libraries.parent))
    listed = json.loads((GGML / "contents.json").read_text())["instructions"]
    needed = set(listed[f"libggml-cpu-{name}.so"]) - {"SSE42"}  # no feature has that name
    if needed <= set(native.features()):
        with ggmodel.load(STORIES) as model:
            text = str(model.generate("Once upon a time", max_tokens=8, temperature=0))
        assert done.stdout.strip() == text.strip(), done.stderr
    else:
        assert f"libggml-cpu-{name}.so needs AVX, AVX2" in done.stderr


def test_workers_on_other_machines_can_be_used() -> None:
    assert {"RPC", "CPU"} <= set(native.describe()["backends"])


def test_the_wheel_is_small_and_names_the_oldest_system(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST
    if sys.platform.startswith("linux"):
        assert re.fullmatch(r"ggmodel-[^-]+-cp310-abi3-manylinux_\S+\.whl", wheel.name)


def test_the_wheel_has_the_licences_of_both(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        ggml = packed.read("ggmodel/native/ggml/LICENSE").decode()
        own = [n for n in packed.namelist() if n.endswith(".dist-info/licenses/LICENSE")]
    assert len(own) == 1
    assert "The ggml authors" in ggml
    assert "Permission is hereby granted, free of charge" in ggml
    assert "ggml/src/ggml-cpu/llamafile/sgemm.cpp: Copyright 2024 Mozilla Foundation" in ggml


def test_the_wheel_tells_nothing_of_the_machine_that_built_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        found = [name for name in names if str(ROOT).encode() in packed.read(name)]
        libraries = {name: packed.read(name) for name in names if name.endswith(".so")}
    assert found == []
    assert not [name for name in names if "/built-" in name]
    assert len(libraries) > 10
    # The table of symbols for debuggers.
    assert not [name for name, content in libraries.items() if b".symtab" in content]


def test_every_library_says_what_it_needs() -> None:
    listed = json.loads((GGML / "contents.json").read_text())["instructions"]
    assert set(listed) == {path.name for path in (GGML / "lib").glob("libggml-cpu-*.so")}
    assert [] in listed.values()
    assert len({tuple(needed) for needed in listed.values()}) == len(listed)


@pytest.mark.parametrize(
    ("pattern", "content", "message"),
    [
        ("lib/libggml-base.so", None, "libggml-base.so cannot be read"),
        ("lib/libggml-base.so", b"\x7fELF", "libggml-base.so has 4 bytes instead of"),
        ("lib/libggml-cpu-*.so", b"", "has 0 bytes instead of"),
        ("lib/libggml-rpc.so", None, "libggml-rpc.so cannot be read"),
        ("include/ggml.h", None, "ggml.h cannot be read"),
        ("contents.json", b"{}", "contents.json is no list of files"),
    ],
)
def test_a_damaged_installation_says_what_to_do(
    copy: Path, pattern: str, content: bytes | None, message: str
) -> None:
    for path in (copy / "native" / "ggml").glob(pattern):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    done = start(copy, "import ggmodel.native", copy.parent)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ggmodel.errors.NativeError: the ggml of this installation is damaged")
    assert message in last
    assert "pip install --force-reinstall ggmodel" in last


def test_a_library_of_the_same_size_that_is_none_says_what_to_do(copy: Path) -> None:
    library = copy / "native" / "ggml" / "lib" / "libggml-base.so"
    size = library.stat().st_size
    library.unlink()
    library.write_bytes(bytes(size))
    done = start(copy, "import ggmodel.native", copy.parent)
    assert "NativeError: cannot load ggml from" in done.stderr
    assert "pip install --force-reinstall ggmodel" in done.stderr


def test_a_processor_that_no_library_fits_is_told_what_they_need(
    copy: Path, compile_library: Callable[[Path, str], None]
) -> None:
    for library in (copy / "native" / "ggml" / "lib").glob("libggml-cpu-*.so"):
        library.unlink()
        if "haswell" in library.name or "armv8.2_1" in library.name:
            compile_library(library, "int ggml_backend_score(void) { return 0; }")
    code = "import ggmodel.native"
    done = start(copy, code, copy.parent, GGMODEL_GGML=str(copy / "native" / "ggml"))
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ggmodel.errors.NativeError: ")
    assert "no library of the CPU's functions that fits this processor" in last
    assert re.search(r"libggml-cpu-(haswell|armv8\.2_1)\.so needs (AVX, AVX2|DOTPROD)", last)


def test_libraries_in_the_current_folder_are_not_loaded(
    tmp_path: Path, compile_library: Callable[[Path, str], None]
) -> None:
    code = "__attribute__((constructor)) void run(void) { _Exit(7); }"
    for name in ("libggml-blas.so", "libggml-cpu-best.so", "libggml-base.so"):
        compile_library(tmp_path / name, f"#include <stdlib.h>\n{code}")
    done = start(PACKAGE, "import ggmodel.native", tmp_path)
    assert done.returncode == 0, done.stderr
