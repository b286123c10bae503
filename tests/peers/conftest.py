"""Where the published files of other projects come from."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "llama-cpp-python==0.3.36"
FOLDER = SOURCE.replace("-", "_").replace("==", "-")


@pytest.fixture(scope="session")
def llama_cpp_dir() -> Path:
    """The llama.cpp inside the source package of llama-cpp-python.

    GGMODEL_PEERS may name an unpacked source package; otherwise it is downloaded once.
    """
    given = os.environ.get("GGMODEL_PEERS")
    folder = Path(given) if given else _downloaded()
    inner = folder / "vendor" / "llama.cpp"
    assert inner.is_dir(), f"{inner} is missing: unset GGMODEL_PEERS, or delete {folder}"
    return inner


def _downloaded() -> Path:
    cache = ROOT / ".cache" / "peers"
    folder = cache / FOLDER
    if not folder.is_dir():
        # Only this package as source: what pip needs to read its metadata may be binary.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        name = SOURCE.split("==")[0]
        subprocess.run([*command, "--no-binary", name, "--dest", cache, SOURCE], check=True)
        unpacking = cache / f"unpacking-{os.getpid()}"
        packed = cache / f"{FOLDER}.tar.gz"
        with tarfile.open(packed) as archive:
            archive.extractall(unpacking, filter="data")
        # Renamed when complete, so that an interrupted run leaves nothing that looks unpacked.
        (unpacking / FOLDER).rename(folder)
        unpacking.rmdir()
        packed.unlink()
    return folder
