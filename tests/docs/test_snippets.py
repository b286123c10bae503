"""Every command and every block of code in the documents is run, or read by the program."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import ggmodel
from ggmodel.cli import app
from ggmodel.model import Modality
from ggmodel.video import open_video
from tests.docs import desk
from tests.documents import ROOT, blocks, read
from tests.serving import running

# Pages whose blocks run here, each as it stands.
RUN = (
    "index",
    "adapters",
    "first-steps",
    "prefix_store",
    "run",
    "audio",
    "images",
    "embeddings",
    "inside",
    "security",
    "structured",
)
PYTHON = (
    "first-steps",
    "run",
    "audio",
    "images",
    "inside",
    "security",
    "adapters",
    "prefix_store",
)  # others: test_documents.py
# Pages whose commands take minutes or other machines, or choose a library: their names and options
# are checked.
READ = (
    "benchmarks",
    "certify",
    "compare",
    "deploying",
    "ggml",
    "install",
    "performance",
    "programs",
    "reliability",
    "requests",
)
# Pages that a test of their own runs.
ELSEWHERE = {
    "README.md": "tests/docs/test_documents.py",
    "CONTRIBUTING.md": "tests/docs/test_contributing.py",
    "docs/chat.md": "tests/chat/test_document.py",
    "docs/coming-from.md": "tests/compat/test_llama.py",
    "docs/conversations.md": "tests/docs/test_documents.py",
    "docs/convert.md": "tests/convert/test_document.py",
    "docs/distributed.md": "tests/ml/rpc/test_document.py",
    "docs/experts.md": "tests/docs/test_blocks.py",
    "docs/latent.md": "tests/docs/test_blocks.py",
    "docs/memory.md": "tests/docs/test_documents.py",
    "docs/models.md": "tests/docs/test_documents.py",
    "docs/names.md": "tests/cli/test_names.py",
    "docs/notebook.md": "tests/docs/test_notebook.py",
    "docs/new-architecture.md": "tests/docs/test_tutorial.py",
    "docs/profile.md": "tests/docs/test_profile_document.py",
    "docs/quantise.md": "tests/convert/test_document.py",
    "docs/recurrent.md": "tests/docs/test_recurrent.py",
    "docs/replies.md": "tests/chat/replies/test_document.py",
}
HERE = ("docs/determinism.md", "docs/diff.md", "docs/serving.md", "docs/video.md")
# Programs that change the machine or need another one.
NOT_RUN = ("pip ", "make ", "git ", "export ", "ssh ")
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def folder(write_gguf: Any, whisper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return desk.lay(tmp_path_factory.mktemp("desk"), write_gguf, whisper_file)


def test_every_page_with_code_is_run():
    known = {f"docs/{name}.md" for name in (*RUN, *READ)} | {*ELSEWHERE, *HERE}
    languages = ("sh", "python", "py", "console")
    shown = {page for page in PAGES if any(blocks(read(page), name) for name in languages)}
    assert shown == known
    for page, test in ELSEWHERE.items():
        assert Path(page).stem.lower() in (ROOT / test).read_text("utf-8").lower(), page


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run(page: str, folder: Path):
    shown = [b for b in blocks(read(f"docs/{page}.md"), "sh") if not b.startswith(NOT_RUN)]
    assert shown
    for block in shown:
        done = desk.run(block, folder)
        assert done.returncode == 0, (block, done.stderr)
        assert done.stdout.strip() or ">" in block, block


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_page_runs(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(ggmodel.limits, "grammar_seconds", ggmodel.limits.grammar_seconds)
    for block in blocks(read(f"docs/{page}.md"), "python"):
        if block.startswith("model."):
            continue  # in test_the_page_about_sounds
        said = executed(block, page)
        assert said.strip() or "print" not in block


def test_the_page_about_sounds(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The one block that goes on with a model that hears, as chats do."""
    monkeypatch.chdir(folder / "short")  # the model hears 60 samples
    (asked,) = [b for b in blocks(read("docs/audio.md"), "python") if b.startswith("model.")]
    encoded = base64.b64encode((folder / "short" / "speech.mp3").read_bytes()).decode()
    samples = np.zeros(24, np.float32)
    with ggmodel.load("../MODEL", models=desk.ARCHITECTURES, context_length=64) as model:
        executed(asked, "audio", model=model, samples=samples, base64_text=encoded)


def executed(block: str, page: str, **given: Any) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(block, f"docs/{page}.md", "exec"), given)
    return said.getvalue()


def test_the_page_about_videos(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    asked, declared = blocks(read("docs/video.md"), "python")
    with ggmodel.load("MODEL", models=desk.ARCHITECTURES, context_length=64) as model:
        space: dict[str, Any] = {"model": model}
        exec(compile(asked, "docs/video.md", "exec"), space)
        assert space["answer"].finish_reason
    space = {"np": np, "Modality": Modality, "open_video": open_video}
    space |= dict.fromkeys(("prepare", "encode", "inputs", "largest"))
    exec(compile(declared, "docs/video.md", "exec"), space)
    times = np.arange(20) / 10  # two seconds
    assert space["two_a_second"](times).tolist() == [0, 5, 10, 15, 19]
    (shown,) = blocks(read("docs/video.md"), "sh")
    done = desk.run(shown.replace("MODEL", f"MODEL -n 2 --models {desk.ARCHITECTURES}"), folder)
    assert done.returncode == 0, done.stderr


def test_the_page_about_determinism(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    stories = str(ROOT / "examples" / "assets" / "stories.gguf")
    shown = "\n".join(blocks(read("docs/determinism.md"), "sh")).replace("FILE.gguf", stories)
    commands = [line for line in shown.splitlines() if line.startswith("ggmodel ")]
    lines = [line for line in commands if "ggmodel serve" not in line]
    done = desk.run("\n".join(lines), folder)
    assert done.returncode == 0, done.stderr
    first, then = blocks(read("docs/determinism.md"), "python")
    executed(first.replace("FILE.gguf", stories), "determinism")
    with ggmodel.load(stories, deterministic=True) as model:
        executed(f"import ggmodel\n{then}", "determinism", model=model)


def test_the_hook_for_pixels_is_one():
    (block,) = blocks(read("docs/diff.md"), "python")
    space: dict[str, Any] = {}
    exec(compile(block, "docs/diff.md", "exec"), space)
    assert callable(space["reference_pixels"])


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """`ggmodel serve` with the models of the pages."""
    stories = "examples/assets/stories.gguf"
    models, options = (f"qwen={stories}", f"stories={stories}"), ("--threads", "1")
    home = str(folder / "home")
    with running(*models, *options, "--max-tokens", "20", cwd=folder, HOME=home) as found:
        yield found.url
        found.stop()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/serving.md"])
def test_the_clients_of_a_page_get_answers(page: str, server: str):
    (block,) = blocks(read(page), "py")
    changed = block.replace("http://127.0.0.1:8080", server)
    assert changed != block
    script = f"import anthropic, ollama, openai\n{changed}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or "print" not in block


def test_a_file_of_requests_is_answered(folder: Path):
    shown = [b for b in blocks(read("docs/serving.md"), "console") if "ggmodel batch" in b]
    command = shown[0].splitlines()[0].removeprefix("$ ")
    done = desk.run(command, folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "answers.jsonl").read_text().count("\n") == 1


def lines(page: str) -> Iterator[str]:
    """The commands of a page in blocks of any kind, without comments and prompts."""
    for block in re.findall(r"^```\w*\n(.*?)^```$", read(page), re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            text = re.split(r" {3,}|\s+# | > ", line.removeprefix("$ "), maxsplit=1)[0]
            yield re.sub(r"^[A-Z_]+=\S+ |^echo .* \| ", "", text)


def starting(word: str) -> list[tuple[str, str]]:
    return [(page, line) for page in PAGES for line in lines(page) if line.startswith(word)]


def test_the_program_knows_every_command_and_option():
    group: Any = typer.main.get_command(app)
    found = starting("ggmodel ")
    assert len(found) > 100
    for page, line in found:
        name, *arguments = shlex.split(line)[1:]
        if name.startswith("-"):
            continue
        command = group.get_command(typer.Context(group), name)
        assert command is not None, f"{page}: {line}"
        if hasattr(command, "commands"):  # as `ggmodel ggml`
            assert arguments[0] in command.commands, f"{page}: {line}"
            command, arguments = command.commands[arguments[0]], arguments[1:]
        try:  # no value is looked at: models of the documents are nowhere
            context = typer.Context(command, **command.context_settings)
            command.make_parser(context).parse_args(arguments)
        except Exception as error:
            pytest.fail(f"{page}: {line}: {error}")


def test_the_program_knows_what_others_are_called_here():
    """The right column of the tables has commands, and options of `ggmodel serve`."""
    group: Any = typer.main.get_command(app)
    serve = group.get_command(typer.Context(group), "serve")
    options = {name for one in serve.params for name in (*one.opts, *one.secondary_opts)}
    rows = re.findall(r"^\|.*\|(.*)\|$", read("docs/coming-from.md"), re.MULTILINE)
    codes = [code for row in rows for code in re.findall(r"`([^`]+)`", row)]
    assert len(codes) > 50
    for code in codes:
        first, *arguments = shlex.split(code)
        if first.startswith("--"):
            assert first in options, code
        elif first == "ggmodel":
            command = group.get_command(typer.Context(group), arguments[0])
            context = typer.Context(command, **command.context_settings)
            command.make_parser(context).parse_args(arguments[1:])


def test_programs_of_the_repository_know_their_options():
    for page, line in [*starting("python "), *starting("$PYTHON ")]:
        _, *words = shlex.split(line)
        module = words[0] == "-m"
        path = words[1].replace(".", "/") if module else words[0]
        found = [ROOT / path, ROOT / f"{path}.py", ROOT / path / "__main__.py"]
        if path == "pytest":
            continue
        program = next((p for p in found if p.is_file()), None)
        assert program is not None, f"{page}: {line}"
        for option in (w.partition("=")[0] for w in words[1 + module :] if w.startswith("--")):
            assert f'"{option}"' in program.read_text("utf-8"), f"{page}: {line}"


def test_make_and_pip_know_what_they_are_asked_for():
    makefile, project = read("Makefile"), read("pyproject.toml")
    made = {line.split()[1] for _, line in starting("make ")}
    assert len(made) > 8
    assert not [t for t in made if not re.search(rf"^{re.escape(t)}:", makefile, re.MULTILINE)]
    extras = {e for _, line in starting("pip install") for e in re.findall(r"\[(\w+)\]", line)}
    assert extras
    assert not [e for e in extras if not re.search(rf"^{e} = \[", project, re.MULTILINE)]
