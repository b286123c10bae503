"""The scripts that prepare other systems, and the targets that run them: with programs that only
note how they are called."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from tools import newest

ROOT = Path(__file__).parents[2]
# Notes its name and its arguments, a line each.
NOTES = """#!/bin/sh
for word in "${0##*/}" "$@"; do echo "$word"; done >>"$NOTED"
for variable in CC GGMODEL_GGML PYTHONPATH XDG_CACHE_HOME XDG_DATA_HOME; do
    eval "echo $variable=\\$$variable" >>"$NOTED.variables"
done
"""
DEBIAN_12 = platform.system() == "Linux" and (
    "bookworm" in platform.freedesktop_os_release().get("VERSION_CODENAME", "")
)


def program(path: Path, text: str = NOTES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def sh(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Runs a script with the programs of `folder` before those of the system."""
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    environment["NOTED"] = str(folder / "noted")
    command = ["sh", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


# Requirements are those in its folder; pip makes the folder of wheels.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then
    cat "${0%/*}/required"
else
    echo installs >>"$NOTED"
    while [ "$1" != --target ]; do shift; done
    mkdir "$2"
fi
"""


@pytest.mark.skipif(not DEBIAN_12, reason="prepares Debian 12 alone")
def test_wheels_for_an_emulated_processor_follow_the_requirements(tmp_path: Path):
    for name in ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64-static"):
        program(tmp_path / name)
    python, folder = program(tmp_path / "python", PYTHON), tmp_path / "system"
    (folder / "root/usr/bin").mkdir(parents=True)

    def prepare(required: str) -> int:
        """How often pip was called by now."""
        (tmp_path / "required").write_text(required)
        done = sh(tmp_path, ROOT / "tools/aarch64.sh", folder, python)
        assert not done.returncode, done.stderr
        return (tmp_path / "noted").read_text().count("installs")

    assert prepare("numpy\n") == 1
    (folder / "site/numpy").mkdir()
    assert prepare("numpy\n") == 1 and (folder / "site/numpy").exists()
    assert prepare("numpy\npillow\n") == 2 and not (folder / "site/numpy").exists()
    shutil.rmtree(folder / "site")
    assert prepare("numpy\npillow\n") == 3 and (folder / "site").exists()


def test_packages_are_not_unpacked_among_other_files(tmp_path: Path):
    program(tmp_path / "apt-get")
    program(tmp_path / "unpack", f'. "{ROOT}/tools/debian.sh"\nunpack "$@"\n')
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "letter").write_text("dear")
    done = sh(tmp_path, tmp_path / "unpack", folder, "bookworm", "amd64", "libvulkan-dev")
    wanted = f"{folder} has other files; name another folder, or empty it\n"
    assert done.returncode == 1 and done.stderr == wanted
    assert not (tmp_path / "noted").exists()  # nothing was looked for, or downloaded


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that the targets need, in a folder with a space."""
    folder = tmp_path / "a clone"
    for name in ("vulkan", "aarch64"):
        program(folder / f"tools/{name}.sh")
    version = folder / "sdk/ggmodel/builds/__init__.py"
    version.parent.mkdir(parents=True)
    shutil.copy(ROOT / "sdk/ggmodel/builds/__init__.py", version)
    shutil.copy(ROOT / "Makefile", folder)
    for name in (".venv/bin/python", ".venv/bin/ggmodel", ".cache/aarch64/root/usr/bin/python"):
        program(folder / name)
    return folder


def make(clone: Path, target: str) -> list[str]:
    """The words of all programs that it runs."""
    built = (".venv/developer", ".venv/builder", f".cache/ggml-aarch64/built-{newest.VERSION}")
    known = [word for name in built for word in ("-o", name)]
    environment = {**os.environ, "NOTED": str(clone / "noted"), "MAKEFLAGS": ""}
    command = ["make", "-C", str(clone), *known, target]
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return (clone / "noted").read_text().splitlines()


def variables(clone: Path) -> dict[str, str]:
    """Those of the last program that ran."""
    lines = (clone / "noted.variables").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_an_emulated_processor_is_prepared_though_ggml_is_built(clone: Path):
    ran = make(clone, "test-aarch64")
    assert ran[:3] == ["aarch64.sh", ".cache/aarch64", ".venv/bin/python"]
    assert ran[3:6] == ["python", "-m", "pytest"]
    system = f"{clone}/.cache/aarch64"
    assert variables(clone) | {"XDG_DATA_HOME": ""} == {
        "CC": f"aarch64-linux-gnu-gcc -idirafter '{system}/root/usr/include'",
        "GGMODEL_GGML": f"{clone}/.cache/ggml-aarch64",
        "PYTHONPATH": f"{clone}/sdk:{system}/site",
        "XDG_CACHE_HOME": f"{system}/cache",
        "XDG_DATA_HOME": "",
    }


@pytest.mark.parametrize("option", ["", "-DVulkan_INCLUDE_DIR=/new headers/usr/include"])
def test_a_build_for_vulkan_in_a_folder_with_spaces(clone: Path, option: str):
    program(clone / "tools/vulkan.sh", f'{NOTES}printf %s "{option}"\n')
    ran = make(clone, "test-vulkan")
    assert ran[:2] == ["vulkan.sh", ".cache/vulkan-headers"]
    assert ran[2:6] == ["ggmodel", "ggml", "build", "--vulkan"]
    assert ran[6 : ran.index("python")] == ([option] if option else [])
    assert variables(clone)["XDG_DATA_HOME"] == f"{clone}/.cache/ggml-vulkan"
