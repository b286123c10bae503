"""Each package above the core can be removed: the packages below it still pass their tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240  # for the tests of one row; they take five to ten on a machine that does nothing else
FIFTH = ("--rows=5", "--row=0")  # of each file's cases

CORE = (
    "test_bounds.py",
    "native/test_binding.py",
    "ml/test_tensor.py",
    "gguf_file/test_source.py",
    "model/test_walk.py",
    "kvcache/test_causal.py",
    "tokenizer/test_vectors.py",
    "chat/test_history.py",
    "golden/test_shapes.py",
)
SILENT = (*CORE[:-1], "golden/test_stories.py")  # nobody chats
CONVERT = ("convert/test_choices.py", "convert/test_model_card.py")
WORKSHOP = (*CONVERT, "workbench/test_golden.py")
NAMES = ("names/test_grammar.py", "names/test_stores.py")
WRITERS = ("export", "imatrix", "llama_cpp", "quantize", "write")

# Removed: paths below sdk/ggmodel → tests of what is below them.
TABLE = {
    "cli": (("cli",), (*CORE, *WORKSHOP, *NAMES, "serve/test_chat.py")),
    "serve": (("serve",), (*CORE, *WORKSHOP, *NAMES)),
    "transcript": (("transcript",), (*CORE, *WORKSHOP)),
    "builds": (("builds",), (*CORE, *WORKSHOP)),
    "names": (("names",), (*CORE, *WORKSHOP)),
    "chat/replies": (("chat/replies",), (*SILENT, *WORKSHOP)),
    "workbench": (("workbench",), (*CORE, *CONVERT)),
    "writers of convert": (tuple(f"convert/{name}.py" for name in WRITERS), CORE),
    "all": (
        ("cli", "serve", "transcript", "builds", "names", "chat/replies", "workbench", "convert"),
        SILENT,
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the SDK, `native` and `models` as folders."""
    return Path(shutil.copytree(ROOT / "sdk", tmp_path_factory.mktemp("storeys") / "sdk"))


@contextmanager
def without(sdk: Path, paths: tuple[str, ...]) -> Iterator[None]:
    """The packages and modules lie elsewhere within the block."""
    aside = sdk.with_name("removed")
    for number, path in enumerate(paths):
        (aside / str(number)).parent.mkdir(exist_ok=True)
        (sdk / "ggmodel" / path).rename(aside / str(number))
    try:
        yield
    finally:
        for number, path in enumerate(paths):
            (aside / str(number)).rename(sdk / "ggmodel" / path)


@pytest.mark.slow
@pytest.mark.parametrize("removed", TABLE)
def test_a_package_can_be_removed(copy: Path, removed: str):
    paths, files = TABLE[removed]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FIFTH]
    command += [f"tests/{file}" for file in files]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(copy), str(ROOT)])
    with without(copy, paths):
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
