"""Where the published files of other projects come from."""

from pathlib import Path

import pytest
from tools import newest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def llama_cpp_dir() -> Path:
    """The llama.cpp inside the source package that `make native` takes ggml from."""
    return newest.source(ROOT / ".cache" / "source")


@pytest.fixture(scope="session")
def llama_cpp_libraries() -> Path:
    """The shared libraries of llama.cpp that `make peer` builds."""
    folder = ROOT / ".cache" / "peer" / "bin"
    assert (folder / "libmtmd.so").exists(), "run `make peer` first"
    return folder
