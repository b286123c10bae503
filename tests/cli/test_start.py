"""Starting: `--help` and `--version` are instant."""

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
        "heavy = {'numpy', 'cffi', 'rich', 'tokenizers', 'ggmodel.native', 'ggmodel.ml'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
