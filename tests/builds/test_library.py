"""`ggmodel ggml` with a source package whose build takes a moment."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ggmodel import ggml_choice as choice
from ggmodel import native
from ggmodel.builds import builder, library
from ggmodel.cli import app
from ggmodel.cli.ggml import ggml
from ggmodel.cli.loading import advise_a_build
from ggmodel.native import install
from ggmodel.platforms import processor
from tests.documents import commands, read

Notes = Callable[[], list[str]]
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """`ask("show")` runs the command; its status, output and errors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    modules = tmp_path / "cache" / "ggmodel" / "native"
    modules.mkdir(parents=True)
    module = Path(native.describe()["module"])
    (modules / module.name).symlink_to(module)

    def run(*arguments: str) -> tuple[int, str, str]:
        ran = CliRunner().invoke(app, ["ggml", *arguments])
        return ran.exit_code, ran.stdout, ran.stderr

    return run


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a self-test, whose process takes most of the time."""
    tested = {"version": "1", "features": {}, "devices": ["CPU"], "comparisons": 1, "prefix": ""}
    monkeypatch.setattr(library, "_child", lambda *_: dict(tested))


def default() -> str:
    """The ggml of a new process."""
    code = "from ggmodel import native; print(native.prefix)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return ran.stdout.strip() or ran.stderr.strip().rpartition("\n")[2]


def installed() -> str:
    """The ggml of this installation, which need not be the one that the tests run on."""
    return str(install.packaged().path)


@pytest.mark.slow
def test_a_build_becomes_the_default(ask: Ask, unpacked: Path, notes: Notes):
    status, printed, errors = ask("build", "--source", str(unpacked))
    assert (status, errors) == (0, "")  # a pipe sees no progress
    assert re.fullmatch(
        rf"native: ggml {native.version}, \d+ results compared on CPU; it is the default now\n",
        printed,
    )
    path = builder.path_of("native")
    assert default() == str(path)
    found = choice.read_stamp(path)
    assert found and found.features == native.features() and found.options == []
    configured = len(notes())
    assert "-DGGML_RPC=ON" in notes()[0]

    status, printed, _ = ask("build", "--source", str(unpacked))
    assert status == 0 and "native is already built with these options" in printed
    assert len(notes()) == configured

    status, printed, _ = ask("show")
    assert status == 0
    assert printed.startswith(f"ggml {native.version}, chosen by `ggmodel ggml use`\n")
    assert re.search(r"^native +default +[\d.]+ *$", printed, re.MULTILINE)
    assert "a better one" not in printed  # it is native

    said = "the ggml that was installed with ggmodel is the default now\n"
    assert ask("use", "default") == (0, said, "")
    assert default() == installed()
    assert ask("use", "native") == (0, "native is the default now\n", "")
    assert default() == str(path)
    status, printed, _ = ask("remove", "native")
    assert status == 0 and re.fullmatch(r"native: [\d.]+ MiB freed\n", printed)
    assert default() == installed()


def test_options_name_the_build(ask: Ask, unpacked: Path, notes: Notes, quick: None):
    status, printed, errors = ask(
        "build", "--vulkan", "--no-rpc", "-DGGML_BLAS=ON", "--source", str(unpacked)
    )
    assert status == 0, errors
    assert printed.startswith("vulkan: ")
    assert notes()[0].endswith("-DGGML_VULKAN=ON -DGGML_RPC=OFF -DGGML_BLAS=ON")
    [build] = json.loads(ask("show", "--json")[1])["builds"]
    assert build["name"] == "vulkan" and build["chosen"] and build["finished"]
    assert build["options"] == ["-DGGML_VULKAN=ON", "-DGGML_RPC=OFF", "-DGGML_BLAS=ON"]


@pytest.mark.parametrize("first", ["", "--"])
def test_options_of_cmake_may_have_any_letter(
    ask: Ask, unpacked: Path, notes: Notes, quick: None, first: str
):
    """Options of one letter, such as -h, are none of them."""
    options = ["-DVulkan_INCLUDE_DIR=/home/h", "-DSPIRV-Headers_DIR:PATH=/usr/share"]
    given = ("--source", str(unpacked), *filter(None, [first]), *options)
    status, printed, errors = ask("build", *given)
    assert (status, errors) == (0, "") and printed.startswith("native: ")
    assert notes()[0].endswith(" ".join(options))
    assert "Usage: " in ask("build", "-DGGML_BLAS=ON", "-h")[1]


@pytest.mark.parametrize("step", ["-G", "-C", "--install"])
def test_a_build_that_fails_leaves_the_default(
    ask: Ask, unpacked: Path, notes: Notes, quick: None, monkeypatch: pytest.MonkeyPatch, step: str
):
    monkeypatch.setenv("BREAKS", step)
    status, printed, errors = ask("build", "--source", str(unpacked))
    assert (status, printed) == (1, "")
    assert "it went wrong" in errors and "failed, as said above" in errors
    assert choice.chosen() is None and builder.build_names() == []
    assert builder.unfinished() == ["native"]
    monkeypatch.setenv("BREAKS", "never")
    assert ask("build", "--source", str(unpacked))[0] == 0
    assert builder.unfinished() == []


def test_a_build_that_cannot_be_loaded_is_not_chosen(
    ask: Ask, unpacked: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    broken = shutil.copytree(native.prefix, tmp_path / "broken")
    for library_file in broken.glob("lib*/libggml.so*"):
        library_file.write_bytes(b"no library")
    monkeypatch.setenv("GGML", str(broken))
    status, _, errors = ask("build", "--source", str(unpacked))
    assert status == 1 and "cannot load ggml from" in errors
    assert choice.chosen() is None and builder.build_names() == []


@pytest.mark.parametrize("status", [1, -11])
def test_a_build_that_computes_wrongly_is_not_chosen(
    ask: Ask, unpacked: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch, status: int
):
    """It says so, or takes its process down."""
    code = {
        1: "import sys; sys.exit('a product of Q4_K is wrong')",
        -11: "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    }
    child = library._child
    monkeypatch.setattr(
        library, "_child", lambda _, prefix, *__: child(["-c", code[status]], prefix)
    )
    found, _, errors = ask("build", "--source", str(unpacked))
    said = {
        1: "a product of Q4_K is wrong",
        -11: "the process that tried this ggml ended by SIGSEGV",
    }
    assert found == 1 and said[status] in errors
    assert choice.chosen() is None and builder.build_names() == []


def test_two_builds_at_once(ask: Ask, unpacked: Path, notes: Notes):
    work = builder.path_of("native").with_name("native" + builder.BUILDING)
    work.mkdir(parents=True)
    with builder.alone(work):
        status, _, errors = ask("build", "--source", str(unpacked))
    assert status == 1 and "another process is building in" in errors


@pytest.mark.parametrize("variable", ["CMAKE_ARGS", "CC"])
def test_a_variable_with_an_open_quotation(
    ask: Ask, unpacked: Path, monkeypatch: pytest.MonkeyPatch, variable: str
):
    monkeypatch.setenv(variable, "-DX='")
    status, _, errors = ask("build", "--source", str(unpacked))
    assert status == 1 and f'{variable} is "-DX=\'": No closing quotation' in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build", "--cudda"), "'--cudda' is no option; those of cmake are -DNAME=VALUE"),
        (("build", "-DX"), "'-DX' is no option"),
        (("build", "GGML_CUDA=ON"), "'GGML_CUDA=ON' is no option"),
        (("build", "--name", "../x"), "'../x' cannot be the name of a build"),
        (("build", "--source", "/none"), "/none/vendor/llama.cpp has no llama.cpp"),
        (("use", "nothing"), "no build is called 'nothing'; there are: default; or give a path"),
        (("use", "../nothing"), "no ggml in "),
        (("use", ""), "'' cannot be the name of a build"),
        (("remove", "default"), "'default' cannot be the name of a build"),
        (("remove", "../../x"), "cannot be the name of a build"),
        (("remove", "nothing"), "no build is called 'nothing'; there are: none"),
    ],
)
def test_bad_input(ask: Ask, notes: Notes, arguments: tuple[str, ...], message: str):
    status, printed, errors = ask(*arguments)
    assert (status, printed) == (1, "")
    assert errors.startswith("error: ") and message in errors
    assert choice.chosen() is None and builder.build_names() == builder.unfinished() == []


def test_a_user_without_a_home_has_no_builds(ask: Ask, homeless: None):
    status, printed, errors = ask("show", "--json")
    assert (status, errors) == (0, "") and json.loads(printed)["builds"] == []
    status, _, errors = ask("use", "nothing")
    assert status == 1 and "no home folder; set XDG_DATA_HOME" in errors


class TestABrokenDefault:
    """It says what to do, and `ggmodel ggml` works still."""

    def broken(self, how: str, tmp_path: Path) -> str:
        path = tmp_path / "chosen"
        choice.choose(path)
        if how == "damaged":
            (tmp_path / "data" / "ggmodel" / "ggml.json").write_text("{")
        elif how == "another processor":
            path.mkdir()
            builder.write_stamp(path, options=[], features={"AMX_INT8": "1", "SME": "1"})
        elif how == "no library":
            shutil.copytree(native.prefix, path)
            for file in path.glob("lib*/libggml-base.so*"):
                file.write_bytes(b"no library")
        return {
            "removed": "the folder does not exist",
            "damaged": "is damaged",
            "another processor": "was built for another processor: this one has no",
            "no library": "cannot load ggml from",
        }[how]

    @pytest.mark.parametrize("how", ["removed", "damaged", "another processor", "no library"])
    def test_what_is_said(self, ask: Ask, tmp_path: Path, how: str):
        message = self.broken(how, tmp_path)
        said = default()
        assert said.startswith("ggmodel.errors.NativeError") and message in said
        assert said.count("`ggmodel ggml use default` goes back") == 1
        status, printed, _ = ask("show")
        assert status == 1 and message in printed
        assert "`ggmodel ggml use default` goes back" in printed
        assert ask("use", "default")[0] == 0
        assert default() == installed()

    def test_the_variable_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        self.broken("damaged", tmp_path)
        monkeypatch.setenv("GGMODEL_GGML", str(native.prefix))
        assert default() == str(native.prefix)


def test_the_variable_is_mentioned(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GGMODEL_GGML", str(native.prefix))
    assert ask("show")[1].startswith(f"ggml {native.version}, named by GGMODEL_GGML\n")
    assert "GGMODEL_GGML is set and comes first" in ask("use", "default")[2]


def test_a_path_is_tried_and_chosen(ask: Ask, tmp_path: Path):
    copy = shutil.copytree(native.prefix, tmp_path / "another ggml")
    assert ask("use", str(copy))[0] == 0
    assert default() == str(copy)


def test_what_a_better_one_gives(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    own = frozenset({*native.features(), "AMX_INT8"})
    monkeypatch.setattr(processor, "kernels", lambda: own)
    printed = ask("show")[1]
    assert re.search(r"^does not use +AMX_INT8 *$", printed, re.MULTILINE)
    assert re.search(r"^a better one +the prebuilt ggml .*: `ggmodel ggml build`", printed, re.M)


def test_figures_are_for_the_ggml_that_was_measured():
    def gain(version: str) -> str:
        about = {"version": version, "prefix": "/none"}
        return library.InUse("installed with ggmodel", about, "", ["AMX_INT8"]).gain

    assert gain("0.20.2") == library.GAIN
    assert "0.20.2" not in gain("0.25.3") and "built here" in gain("0.25.3")


def test_figures_are_those_of_the_document():
    numbers = re.findall(r"\d+(?:\.\d+)+(?: to [\d.]+)? ?×?", library.GAIN)
    assert len(numbers) == 4
    for number in numbers:
        assert number.strip() in read("docs/performance.md")


class TestAdvice:
    @pytest.fixture
    def said(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
        """A terminal, and a processor with more than ggml uses; `said()` asks once."""
        lines: list[str] = []
        own = frozenset({*native.features(), "AMX_INT8"})
        monkeypatch.setattr(processor, "kernels", lambda: own)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

        def ask() -> str:
            lines.clear()
            with monkeypatch.context() as patched:
                patched.setattr(sys, "stderr", Terminal(lines))
                advise_a_build()
            return "".join(lines)

        return ask

    def test_it_is_said_once(self, said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        text = said()
        assert "uses no AMX_INT8 of this processor; `ggmodel ggml build` makes" in text
        assert text.count("\n") == 1
        assert said() == ""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "emptied"))
        other = frozenset({*native.features(), "AMX_INT8", "AVX512_BF16"})
        monkeypatch.setattr(processor, "kernels", lambda: other)
        assert said() == ""

    def test_not_in_a_pipe(self, said: Any, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(Terminal, "isatty", lambda self: False)
        assert said() == ""

    def test_not_of_a_native_build(self, said: Any, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(choice, "is_native", lambda path: True)
        assert said() == ""

    def test_not_where_all_is_used(self, said: Any, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(processor, "kernels", lambda: frozenset(native.features()))
        assert said() == ""

    def test_not_where_nothing_can_be_remembered(self, said: Any, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/none")
        assert said() == ""


class Terminal:
    """Standard error that is one."""

    def __init__(self, lines: list[str]):
        self.lines = lines

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.lines.append(text)

    def flush(self) -> None:
        """Nothing is held back."""


def test_the_commands_of_the_page_are_understood():
    lines = commands(read("docs/ggml.md").replace("\\\n", " "))
    assert len(lines) > 5
    known = typer.main.get_command(ggml)
    for line in lines:
        _, _, name, *arguments = shlex.split(line, comments=True)
        context = known.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]
        assert all(option.startswith("-D") for option in context.params.get("options") or ())
