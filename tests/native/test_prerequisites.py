"""The check of a machine's prerequisites for building."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "native" / "prerequisites.sh"


def check(path: Path, *arguments: str, python: str = sys.executable):
    """Run the script with only the programs in the folder `path`."""
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env={"PATH": str(path), "PYTHON": python},
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with all prerequisites."""
    for name in ("cc", "c++", "make", "cat"):
        os.symlink(shutil.which(name) or "/bin/true", tmp_path / name)
    return tmp_path


def test_a_complete_machine_passes_silently(programs: Path) -> None:
    done = check(programs)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("program", "package"), [("cc", "gcc"), ("c++", "g++"), ("make", "make")])
def test_a_missing_program_is_named_with_its_package(
    programs: Path, program: str, package: str
) -> None:
    (programs / program).unlink()
    done = check(programs)
    assert done.returncode == 1
    assert f"apt-get install {package}\n" in done.stderr
    assert check(programs, "--debian").stdout == f"{package}\n"


def test_all_that_is_missing_is_printed_at_once(tmp_path: Path) -> None:
    os.symlink("/bin/cat", tmp_path / "cat")
    done = check(tmp_path, python="python3")
    assert done.returncode == 1
    assert "apt-get install python3 python3-venv python3-dev gcc g++ make\n" in done.stderr


def test_a_python_without_headers_and_venv(programs: Path) -> None:
    # A stand-in that only knows its version.
    fake = programs / "python"
    fake.write_text('#!/bin/sh\ncase "$2" in *version_info*) exit 0;; esac\nexit 1\n')
    fake.chmod(0o755)
    assert check(programs, "--debian", python=str(fake)).stdout == "python3-venv python3-dev\n"


def test_an_old_python(programs: Path) -> None:
    fake = programs / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    done = check(programs, python=str(fake))
    assert done.returncode == 1
    assert "Python 3.10 or newer" in done.stderr
