"""Starting: `--help` and `--version` are instant, and a model starts with what it needs only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ggmodel
from ggmodel.cli import COMMANDS


def test_version(program):
    assert program("--version").stdout == f"ggmodel {ggmodel.__version__}\n"


def test_help_names_the_commands(program):
    ran = program("--help")
    assert ran.returncode == 0
    for command in ("run", "show", "check"):
        assert f"\n  {command} " in ran.stdout
    groups = ran.stdout.split("a model:\n")[1:]
    for group, commands in zip(groups, ("run chat", "show check", "new diff golden"), strict=True):
        for command in commands.split():
            assert f"  {command} " in group
    shown = re.findall(r"^  ([a-z]+)  ", "\n".join(groups), re.MULTILINE)
    assert sorted(shown) == sorted(COMMANDS.keys() - {"runner", "worker"})


@pytest.mark.parametrize("command", ["run", "chat", "estimate", "perplexity", "diff"])
def test_the_context_is_spelled_alike(program, command: str):
    shown = program(command, "--help").stdout
    assert "--context-length " in shown
    assert "--context " not in shown


def test_shells_can_complete(program):
    asked = {"COMP_WORDS": "ggmodel per", "COMP_CWORD": "1"}
    code = "from ggmodel.cli import app; app(prog_name='ggmodel')"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked | {"_GGMODEL_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == ["perplexity"], ran.stderr


def test_completion_is_shown_and_installed(program, tmp_path: Path):
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = program("--show-completion", "bash", env=home)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "complete -o default -F" in shown.stdout
    installed = program("--install-completion", "bash", env=home)
    assert (installed.returncode, installed.stderr) == (0, "")
    assert "ggmodel" in (tmp_path / ".bashrc").read_text()


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from ggmodel.cli import app\n"
        "for args in (['--help'], ['run', '--help']):\n"
        "    try: app(args)\n"
        "    except SystemExit: pass\n"
    )
    found = imported(code)
    heavy = "numpy cffi rich tokenizers jinja2 PIL pycparser gguf asyncio "
    heavy += "ggmodel.native ggmodel.ml ggmodel.model ggmodel.runner ggmodel.gguf_file.reader"
    assert not found & set(heavy.split())
    assert "ggmodel.cli.run" in found


def test_a_command_imports_no_other():
    found = imported(
        "import sys\n"
        "from ggmodel.cli import app\n"
        "try: app(['run', '--help'])\n"
        "except SystemExit: pass"
    )
    commands = {f"ggmodel.cli.{name}" for name in COMMANDS}
    assert found & commands == {"ggmodel.cli.run", "ggmodel.cli.chat"}  # run chats, too


def test_a_first_token_imports_what_it_needs(model_path):
    """Stores of names, replies, towers, other caches and architectures take no part in it."""
    found = imported(
        "import sys, ggmodel\n"
        f"with ggmodel.load({str(model_path)!r}, context_length=64) as model:\n"
        "    model.generate('abc', max_tokens=1, temperature=0.0)"
    )
    unneeded = "names.sources names.ollama names.hub_cache names.go_template chat.replies "
    unneeded += "nn.vision nn.audio nn.nearby audio video convert workbench transcript serve cli "
    unneeded += "kvcache.bidirectional kvcache.compressed kvcache.encoder kvcache.recurrent"
    assert not found & {f"ggmodel.{name}" for name in unneeded.split()}
    assert not found & {"numpy.random", "socket", "fractions", "decimal", "html", "secrets"}
    assert {n for n in found if re.fullmatch(r"ggmodel\.models\.\w+", n)} == {
        "ggmodel.models.llama"
    }


def test_a_first_token_needs_no_parsers_and_no_pictures(model_path):
    found = imported(
        "import sys, ggmodel\n"
        f"with ggmodel.load({str(model_path)!r}, context_length=64) as model:\n"
        "    model.generate('abc', max_tokens=1, temperature=0.0)"
    )
    assert not found & {"cffi", "pycparser", "rich", "jinja2", "PIL", "gguf", "typer"}
    assert not found & {"importlib.metadata", "llguidance"}
    assert {"numpy", "tokenizers", "ggmodel.native"} <= found


def test_a_first_token_comes_before_a_search_for_cycles(model_path):
    """Nearly all objects that a command makes until then stay."""
    code = (
        "import atexit, gc, sys\n"
        "from ggmodel.__main__ import main\n"
        "searches = []\n"
        "gc.callbacks.append(lambda phase, facts: searches.append(facts['generation']))\n"
        "atexit.register(lambda: print(f'searches: {len(searches)}'))\n"
        f"sys.argv[1:] = ['run', {str(model_path)!r}, 'abc', '--raw', '--max-tokens', '1']\n"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "searches: 0"


@pytest.mark.parametrize("chosen", [None, "3"])
def test_commands_start_no_threads_for_numpy_unless_told_to(chosen: str | None):
    code = (
        "import os, sys\n"
        "from ggmodel.cli import main\n"
        "sys.argv[1:] = ['--version']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import numpy\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], len(os.listdir('/proc/self/task')))"
    )
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    if chosen:
        env["OPENBLAS_NUM_THREADS"] = chosen
    ran = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, check=True)
    number, threads = ran.stdout.splitlines()[-1].split()
    assert number.decode() == (chosen or "1")
    assert chosen or int(threads) == 1


def imported(code: str) -> set[str]:
    """The modules that a program has imported at its end."""
    code += "\nsys.stdout.write('\\n' + ' '.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.rpartition("\n")[2].split())
