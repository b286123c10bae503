"""The source distribution builds a wheel that works in an empty environment, far from here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORIES = ROOT / "examples" / "assets" / "stories.gguf"

# Two environments are installed from the package index.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command without what the environment of these tests could lend to it."""
    lent = ("PYTHON", "GGMODEL_", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(lent)}
    env |= variables
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done


def run_wheel(*command: str | Path, cwd: Path) -> str:
    """The output of an installed program without a compiler: the wheel brings its binding."""
    variables = {"CC": "no-such-compiler", "XDG_CACHE_HOME": str(cwd / "cache")}
    return run(*command, cwd=cwd, **variables).stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    work = tmp_path_factory.mktemp("build")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=work)
    [sdist] = out.glob("*.tar.gz")
    [wheel] = out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def python(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment into which the wheel was installed."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place / "env", with_pip=True)
    python = place / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", distributions[1], cwd=place)
    return python


def test_the_wheel_serves_every_python_of_this_platform(distributions: tuple[Path, Path]) -> None:
    assert re.fullmatch(r"ggmodel-[^-]+-cp310-abi3-\w+\.whl", distributions[1].name)


def test_the_wheel_holds_real_files(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        entries = wheel.infolist()
    # The file type is in the upper half of the attributes, as in stat.
    links = [e.filename for e in entries if (e.external_attr >> 16) & 0o170000 == 0o120000]
    assert links == []
    names = {entry.filename for entry in entries}
    assert [n for n in names if re.fullmatch(r"ggmodel/native/_ggml_\w+\.abi3\.so", n)]
    assert "ggmodel/py.typed" in names
    assert all(name.startswith(("ggmodel/", "ggmodel-")) for name in names)


@pytest.mark.parametrize("package", ["native", "models"])
def test_what_is_linked_into_the_source_tree_is_there(
    distributions: tuple[Path, Path], package: str
) -> None:
    sources = {
        f"ggmodel/{package}/{path.relative_to(ROOT / package)}"
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".c")
    }
    assert sources
    with zipfile.ZipFile(distributions[1]) as wheel:
        assert sources - set(wheel.namelist()) == set()
    with tarfile.open(distributions[0]) as sdist:
        members = {m.name.split("/sdk/")[-1] for m in sdist if m.isfile()}
    assert sources - members == set()


def test_files_that_are_no_code_are_there(distributions: tuple[Path, Path]) -> None:
    sdk = ROOT / "sdk"
    kinds = (".html", ".json", ".md", ".txt")
    data = [path for path in (sdk / "ggmodel").rglob("*") if path.suffix in kinds]
    assert {path.suffix for path in data} == set(kinds)
    with zipfile.ZipFile(distributions[1]) as wheel:
        assert {str(path.relative_to(sdk)) for path in data} - set(wheel.namelist()) == set()


def test_the_command_generates_text(python: Path, tmp_path: Path) -> None:
    command = ("run", STORIES, "Once upon a time", "--raw", "-n", "16", "--temperature", "0")
    installed = run_wheel(python.parent / "ggmodel", *command, cwd=tmp_path)
    assert len(installed.split()) >= 4
    assert run_wheel(python, "-m", "ggmodel", *command, cwd=tmp_path) == installed


def test_python_generates_text(python: Path, tmp_path: Path) -> None:
    code = f"""
import ggmodel
with ggmodel.load({str(STORIES)!r}) as model:
    completion = model.generate("Once", max_tokens=8, temperature=0)
    assert len(completion.tokens) == 8, completion.tokens
    print(completion)
print(ggmodel.__file__)
"""
    text, place = run_wheel(python, "-c", code, cwd=tmp_path).rstrip().rsplit("\n", 1)
    assert text.strip()
    assert Path(place).is_relative_to(python.parents[1])


def test_the_build_and_the_running_package_use_the_same_ggml() -> None:
    [built] = re.findall(r'"libggml-python==([^"]+)"', (ROOT / "pyproject.toml").read_text())
    [run] = re.findall(r'"libggml-python==([^"]+)"', (ROOT / "setup.py").read_text())
    assert built == run


def test_the_wheel_depends_on_the_package_that_has_its_ggml(
    distributions: tuple[Path, Path],
) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        [metadata] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        required = re.findall(r"^Requires-Dist: ([\w-]+)", wheel.read(metadata).decode(), re.M)
        assert not [name for name in wheel.namelist() if name.startswith("ggmodel/native/ggml/")]
    assert "libggml-python" in required
