"""`ggmodel certify` as users start it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.certify_faults import Contents
from benchmarks.certify_files import write_folder

from ggmodel.convert import convert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return write_folder(tmp_path_factory.mktemp("certify") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    path = folder.parent / "good.gguf"
    convert(folder, path, "q8_0")
    return path


def test_a_good_file(program: Any, folder: Path, file: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    done = program("certify", file, "--against", folder, "--html", page)
    assert done.returncode == 0, done.stderr
    assert f"{file} is {folder}, in all that was compared" in done.stdout
    assert "equal" in done.stdout and "not checked: what the models compute" in done.stdout
    assert page.read_text().startswith("<!doctype html>")


def test_a_faulty_file(program: Any, folder: Path, file: Path, tmp_path: Path):
    contents = Contents.read(file)
    contents.swap("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight")
    faulty = contents.write(tmp_path / "faulty.gguf")
    done = program("certify", faulty, "--against", folder)
    assert done.returncode == 1
    assert "2 faults:" in done.stdout and "it holds the checkpoint's" in done.stdout
    done = program("certify", faulty, "--against", folder, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert not found["ok"] and {f["kind"] for f in found["findings"] if f["fault"]} == {"swapped"}


def test_wrong_use(program: Any, folder: Path, file: Path):
    done = program("certify", "--against", folder)
    assert done.returncode == 1 and "give a GGUF file or --server" in done.stderr
    done = program("certify", file)
    assert done.returncode == 2 and "--against" in done.stderr
    done = program("certify", "--server", "nowhere", "--against", folder)
    assert done.returncode == 1 and "is no address" in done.stderr
    done = program("certify", "--server", "http://127.0.0.1:1", "--against", folder)
    assert done.returncode == 1 and "does not answer" in done.stderr
