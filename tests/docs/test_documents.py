"""Runs the code and the commands of README and docs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from ggmodel.model.config import key_fields
from ggmodel.model.module import module_fields
from tests.documents import ROOT, anchors, blocks, commands, printed, read, without_code

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    ROOT / ".agents" / "skills" / "port-a-model" / "SKILL.md",
    *(ROOT / "docs").glob("*.md"),
]
README, MEMORY, DIFF = read("README.md"), read("docs/memory.md"), read("docs/diff.md")


def test_the_excerpt_is_part_of_a_model():
    excerpt = blocks(README, "python")[0]
    assert excerpt in (ROOT / "models" / "olmo" / "olmo2.py").read_text()


def test_the_hooks_for_images_are_those_of_a_golden():
    (excerpt,) = [b for b in blocks(read("docs/models.md"), "text") if "PICTURES" in b]
    hooks = excerpt[excerpt.index("def ") :]
    assert hooks in (ROOT / "tests" / "golden" / "gemma3" / "cases.py").read_text()


def test_the_python_of_the_readme_runs():
    assert len(printed(blocks(README, "python")[1], "README.md").split()) > 60


def test_the_python_about_memory_runs():
    (code,) = blocks(MEMORY, "python")
    printed(code, "docs/memory.md")


def test_the_python_about_embeddings_runs():
    (code,) = blocks(read("docs/embeddings.md"), "python")
    said = printed(code, "docs/embeddings.md")
    assert len(re.findall(r"-?\d\.\d+|1\.", said)) == 9


@pytest.mark.parametrize(
    ("page", "words"), [("requests", 80), ("structured", 5), ("chat", 100), ("conversations", 80)]
)
def test_the_python_of_a_page_runs(page: str, words: int):
    code = blocks(read(f"docs/{page}.md"), "python")
    assert code
    said = "".join(printed(f"import ggmodel\n{block}", f"docs/{page}.md") for block in code)
    assert len(said.split()) > words


SHELL = [line for block in blocks(README, "sh") for line in block.splitlines()]
COMMANDS = commands(README)


@pytest.mark.parametrize("line", [*COMMANDS, *commands(MEMORY), *commands(DIFF)])
def test_a_command_of_the_documents_runs(line: str):
    command = [sys.executable, "-m", *shlex.split(line, comments=True)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 5


def test_the_readme_shows_the_commands_and_the_make_targets():
    shown = {line.split()[1] for line in COMMANDS}
    assert shown == {"run", "show", "check", "estimate", "bench"}
    makefile = (ROOT / "Makefile").read_text()
    targets = {line.split()[1] for line in SHELL if line.startswith("make ")}
    assert targets == {"demo", "check", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_nothing_is_left_to_be_filled_in():
    for document in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")):
        assert not re.search(r"@[A-Z_]+@|TODO|TBD", document.read_text()), document.name


def test_rows_of_tables_have_the_cells_of_their_heads():
    """A `|` within a cell is escaped, in code too."""
    for document in PAGES:
        text = without_code(document.read_text())
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            head, *rows = (len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines())
            assert rows and set(rows) == {head}, (document.name, table[:200])


def test_links_of_the_documents_lead_somewhere():
    count = 0
    of_the_site = {"api/ggmodel.md", "architectures.md", "commands/index.md"}  # see test_site.py
    for document in (*PAGES, ROOT / "CHANGELOG.md"):
        links = re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", without_code(document.read_text()))
        count += len(links)
        for target, anchor in links:
            if "://" in target or (document.name == "index.md" and target in of_the_site):
                continue
            file = document.parent / target if target else document
            assert file.exists(), f"{document.name} → {target}"
            if anchor and file.suffix == ".md":
                assert anchor in anchors(file.read_text()), f"{document.name} → {target}#{anchor}"
    assert count > 300


def test_anchors_are_those_of_headings():
    text = '# `a_b` [c](d.md): E–f\n## Same\n### Same\n```sh\n# code\n```\n<a id="old"></a>\n'
    assert anchors(text) == {"a_b-c-ef", "same", "same-1", "old"}


def test_the_declarations_of_the_guide_are_declarations(monkeypatch: pytest.MonkeyPatch):
    guide = blocks(read("docs/models.md"), "python")
    assert len(guide) == 8
    # From the third on they go on with the class that the second one ends with.
    code = "\n".join(guide)
    module = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)  # where annotations are looked up
    space = vars(module)
    exec("from ggmodel import Config, Model, Module, Tensor, gguf, kv, nn", space)
    exec("from ggmodel.kvcache import Sliding\nimport math", space)
    exec("from ggmodel.model import Numbers, Operation, PermuteRope", space)
    exec("from ggmodel.nn import Embedding, Linear, RMSNorm", space)
    exec(compile(code, "docs/models.md", "exec"), space)
    assert {name for name, *_ in key_fields(space["MyConfig"])} >= {"width", "heads", "window"}
    assert list(module_fields(space["MyModel"])) == ["embed", "layers", "norm", "head", "rotary"]
    assert module_fields(space["Layer"])["shared"][0].suffix == "_shexp"
    assert space["MyModel"].hidden.__qualname__ == "MyModel.hidden"
    kernel = np.arange(4 * 3 * 2 * 5 * 5.0).reshape(4, 3, 2, 5, 5)
    flat, config = space["Flat"](), SimpleNamespace(frames=2, patch=5)
    packed = flat.to_gguf(kernel, config)
    assert packed.shape == flat.shape(kernel.shape, config) == (4, 150)
    assert np.array_equal(flat.to_hf(packed, config), kernel)
    methods = {"has_vision", "preprocess", "image_inputs", "modalities", "caches"}
    assert methods <= vars(space["MyModel"]).keys()
