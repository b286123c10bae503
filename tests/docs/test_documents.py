"""What README and docs say works: their code and their commands are run."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ggmodel.model.config import key_fields
from ggmodel.model.module import module_fields

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MEMORY = (ROOT / "docs" / "memory.md").read_text()
DIFF = (ROOT / "docs" / "diff.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_excerpt_is_part_of_a_model():
    excerpt = blocks(README, "python")[0]
    assert excerpt in (ROOT / "models" / "llama" / "model.py").read_text()


def test_the_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    code = blocks(README, "python")[1]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "README.md", "exec"), {})
    assert len(said.getvalue().split()) > 60


def test_the_python_about_memory_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    (code,) = blocks(MEMORY, "python")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "docs/memory.md", "exec"), {})


def test_the_python_about_embeddings_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    (code,) = blocks((ROOT / "docs" / "embeddings.md").read_text(), "python")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "docs/embeddings.md", "exec"), {})
    assert len(re.findall(r"-?\d\.\d+|1\.", said.getvalue())) == 9


def commands(text: str) -> list[str]:
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("ggmodel ")]


SHELL = [line for block in blocks(README, "sh") for line in block.splitlines()]
COMMANDS = commands(README)


@pytest.mark.parametrize("line", [*COMMANDS, *commands(MEMORY), *commands(DIFF)])
def test_a_command_of_the_documents_runs(line: str):
    command = [sys.executable, "-m", *shlex.split(line, comments=True)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 10


def test_the_readme_shows_the_commands_and_the_make_targets():
    shown = {line.split()[1] for line in COMMANDS}
    assert shown == {"run", "show", "check", "estimate", "devices", "bench", "trace", "profile"}
    makefile = (ROOT / "Makefile").read_text()
    targets = {line.split()[1] for line in SHELL if line.startswith("make ")}
    assert targets == {"demo", "test", "native", "peer", "bench"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_nothing_is_left_to_be_filled_in():
    for document in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")):
        assert not re.search(r"@[A-Z_]+@|TODO|TBD", document.read_text()), document.name


def test_links_of_the_documents_lead_somewhere():
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} → {target}"


def test_the_declarations_of_the_guide_are_declarations(monkeypatch: pytest.MonkeyPatch):
    guide = blocks((ROOT / "docs" / "models.md").read_text(), "python")
    assert len(guide) == 5
    # From the third on they go on with the class that the second one ends with.
    code = "\n".join(guide)
    module = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)  # where annotations are looked up
    space = vars(module)
    exec("from ggmodel import Config, Model, Module, Tensor, gguf, kv, nn", space)
    exec("from ggmodel.kvcache import Sliding\nfrom ggmodel.model import PermuteRope", space)
    exec("from ggmodel.nn import Embedding, Linear, RMSNorm", space)
    exec(compile(code, "docs/models.md", "exec"), space)
    assert {name for name, *_ in key_fields(space["MyConfig"])} >= {"width", "heads", "window"}
    assert list(module_fields(space["MyModel"])) == ["embed", "layers", "norm", "head", "rotary"]
    assert module_fields(space["Layer"])["shared"][0].suffix == "_shexp"
    assert space["MyModel"].hidden.__qualname__ == "MyModel.hidden"
    assert {"sees", "preprocess", "image_inputs", "caches"} <= vars(space["MyModel"]).keys()
