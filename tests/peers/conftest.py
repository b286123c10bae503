"""Where the published files of other projects come from."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tools import newest

from tests.peers.mtmd import Mtmd
from tests.peers.programs import Answers
from tests.peers.towers import Files, Tower

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def llama_cpp_dir() -> Path:
    """The llama.cpp inside the source package that `make native` takes ggml from."""
    return newest.source(ROOT / ".cache" / "source")


@pytest.fixture(scope="session")
def llama_cpp_libraries() -> Path:
    """The shared libraries of llama.cpp, as `make test-peers` or `make peer` builds them."""
    builds = [ROOT / ".cache" / name for name in ("peer", "llama.cpp")]
    stamp = f"built-{newest.VERSION}"
    build = next((one for one in builds if (one / stamp).exists()), None)
    assert build is not None, "run `make test-peers`, which builds them"
    return build / "bin"


@pytest.fixture(scope="session")
def answers(
    llama_cpp_dir: Path, llama_cpp_libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Answers:
    return Answers(llama_cpp_dir, llama_cpp_libraries, tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="session")
def mtmd(
    llama_cpp_dir: Path, llama_cpp_libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mtmd:
    return Mtmd(llama_cpp_dir, llama_cpp_libraries, tmp_path_factory.mktemp("mtmd"))


@pytest.fixture(scope="session")
def tower_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tower], Files]:
    """Writes the files of a tiny model, once."""
    written: dict[str, Files] = {}

    def files(tower: Tower) -> Files:
        if repr(tower) not in written:
            written[repr(tower)] = tower.write(tmp_path_factory.mktemp("tower") / "hf")
        return written[repr(tower)]

    return files
