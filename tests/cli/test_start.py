"""Starting: `--help` and `--version` are instant, and a model starts with what it needs only."""

from __future__ import annotations

import subprocess
import sys

import ggmodel


def test_version(program):
    assert program("--version").stdout == f"ggmodel {ggmodel.__version__}\n"


def test_help_names_the_commands(program):
    ran = program("--help")
    assert ran.returncode == 0
    for command in ("run", "show", "check"):
        assert f"\n  {command} " in ran.stdout


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
    heavy += "ggmodel.native ggmodel.ml ggmodel.model ggmodel.runner ggmodel.gguf.reader"
    assert not found & set(heavy.split())
    assert "ggmodel.cli.run" in found


def test_a_first_token_needs_no_parsers_and_no_pictures(model_path):
    found = imported(
        "import sys, ggmodel\n"
        f"with ggmodel.load({str(model_path)!r}, context_length=64) as model:\n"
        "    model.generate('abc', max_tokens=1, temperature=0.0)"
    )
    assert not found & {"cffi", "pycparser", "rich", "jinja2", "PIL", "gguf", "typer"}
    assert not found & {"importlib.metadata", "llguidance"}
    assert {"numpy", "tokenizers", "ggmodel.native"} <= found


def imported(code: str) -> set[str]:
    """The modules that a program has imported at its end."""
    code += "\nsys.stdout.write('\\n' + ' '.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.rpartition("\n")[2].split())
