"""docs/new-architecture.md, followed to the letter."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ggmodel.workbench import golden
from tests.convert.folders import write_model, write_tokenizer

HERE = Path(__file__).parent
TEXT = (HERE.parents[1] / "docs" / "new-architecture.md").read_text("utf-8")
BLOCK = re.compile(r"^```(sh|text|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The files that the two commands which need torch leave behind, as transformers 5.23 made them.
MADE = {"golden": ("goldens/*.npz", "mine/goldens/{}"), "diff": ("reference.npz", ".")}
WRONG = ("DIFFERS", "diverges")


def run(line: str, folder: Path, made: Path = HERE / "granite") -> str:
    """The output of a command.

    Args:
        folder: runs there.
        made: the folder with the results of commands that need torch.
    """
    name, *arguments = shlex.split(line, comments=True)
    if "# needs torch" in line:
        files, target = MADE[arguments[0]]
        for file in made.glob(files):
            shutil.copy(file, folder / target.format(made.name))
        return ""
    program = [sys.executable, "-m", name, *(["-p", "no:cacheprovider"] * (name == "pytest"))]
    done = subprocess.run(
        [*program, *arguments],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == any(word in done.stdout for word in WRONG), (line, done.stderr)
    return done.stdout


def check(said: str, expected: str) -> None:
    """Each line that is expected is there, in order; … stands for anything."""
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for line in expected.splitlines():
        parts = map(re.escape, " ".join(line.split()).split("…"))
        pattern = re.compile(".*".join(parts))
        while lines and not pattern.search(lines[0]):
            lines.pop(0)
        assert lines, f"{line!r} is not in (or not in this order):\n{said}"


def apply(patch: str, folder: Path) -> None:
    """Changes a file; what each part of the patch removes or keeps must be there once."""
    name, *parts = re.split(r"\n@@\n", patch.removeprefix("--- ").replace("\n", "\n@@\n", 1))
    path = folder / name
    text = path.read_text()
    for part in parts:
        lines = [(line[:1] or " ", line[1:]) for line in part.rstrip("\n").split("\n")]
        old, new = ("".join(f"{t}\n" for s, t in lines if s != without) for without in "+-")
        assert text.count(old) == 1, f"not there once:\n{old}"
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.slow
def test_every_step_does_what_it_says(tmp_path: Path):
    plain = golden.Golden.load(HERE / "granite" / "plain.npz")
    plain.folder = tmp_path / "rule"  # the common rule for weights
    weights = {name: golden.weight(name, shape) for name, shape in plain.tensors.items()}
    tiny = write_model(tmp_path / "granite-tiny", plain.config, weights)
    write_tokenizer(tiny, plain.config["vocab_size"])
    said, torch = "", 0
    for language, text in BLOCK.findall(TEXT):
        if language == "sh":
            torch += text.count("# needs torch")
            said = "".join(run(line, tmp_path) for line in text.splitlines())
        elif language == "text":
            check(said, text)
        else:
            apply(text, tmp_path)
    assert torch == 2
    assert "<svg" in (tmp_path / "granite.svg").read_text()[:300]


def test_the_checker_finds_what_is_missing():
    check("a  b 1.0\nc\n", "a b …\nc")
    for wrong in ("c\na", "d", "a b 2"):
        try:
            check("a b 1.0\nc\n", wrong)
        except AssertionError:
            continue
        raise AssertionError(wrong)
