"""`ggmodel graph`; what is drawn is tested in tests/workbench."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from .test_bad_input import refused

SHAPES = Path(__file__).parents[2] / "examples" / "assets" / "shapes.gguf"


@pytest.mark.slow
def test_svg(program, model_path: Path, tmp_path: Path):
    file = tmp_path / "out.svg"
    ran = program("graph", model_path, "-o", file)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert ElementTree.parse(file).getroot().tag.endswith("svg")
    ran = program("graph", model_path)
    assert ran.stdout == file.read_text() and "text: 512 tokens" in ran.stdout
    assert "text: 1 token<" in program("graph", model_path, "--decode", "-o", "-").stdout
    assert "I32 [33]" in program("graph", model_path, "--prompt-length", "33").stdout


def test_dot(program, model_path: Path, tmp_path: Path):
    for name in ("out.dot", "out.GV"):
        assert program("graph", model_path, "-o", tmp_path / name, "--layer", "1").returncode == 0
        assert (tmp_path / name).read_text().startswith("digraph model {")


def test_parts(program):
    both = program("graph", SHAPES).stdout
    vision, text = (program("graph", SHAPES, f"--{n}").stdout for n in ("vision", "text"))
    shown = [("vision: an image" in s, "text: 512" in s) for s in (both, vision, text)]
    assert shown == [(True, True), (True, False), (False, True)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layer", "2"), "there is no layer 2; there is blk 0-1"),
        (("--vision",), "holds no vision tensors"),
        (("--prompt-length", "0"), "0 tokens"),
        (("-o", "picture.png"), "ends with .svg or .dot"),
        (
            ("-o", "/does/not/exist.svg"),
            "exist.svg: the folder /does/not does not exist",
        ),
        (("--kv-type", "f8"), "--kv-type 'f8'"),
    ],
)
def test_what_cannot_be_drawn(program, model_path: Path, options: tuple, message: str):
    refused(program("graph", model_path, *options), message)


def test_no_model(program, tmp_path: Path):
    refused(program("graph", tmp_path / "missing.gguf"), "does not exist")
