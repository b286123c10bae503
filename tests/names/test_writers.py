"""Several writers of one store: a lock across processes, which ends with its holder."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ggmodel.errors import ModelNotFound, WriteError
from ggmodel.names import derived, find_stored
from ggmodel.names.blobs import receive_blob
from ggmodel.names.layers import DerivedModel
from ggmodel.storage import locked
from tests.children import ROOT

from .conftest import Homes
from .stores import EMPTY, digest

DATA = EMPTY
FILES = DerivedModel(files={"m.gguf": f"sha256:{digest(DATA)}"})


def upload() -> None:
    with receive_blob(f"sha256:{digest(DATA)}") as blob:
        blob.write(DATA)


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that holds a lock, and the lock."""
    path = tmp_path / "store" / ".lock"
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom ggmodel.storage import locked\n"
        "with locked(Path(sys.argv[1]), 'copying all'):\n print('ready', flush=True)\n"
        " time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process, path
    process.kill()
    process.wait(10)
    process.stdout.close()


def test_a_lock_names_its_holder_and_ends_with_it(holder: tuple[subprocess.Popen[str], Path]):
    process, path = holder
    message = rf"store is locked by process {process.pid}, copying all; wait for its end, or end it"
    with pytest.raises(WriteError, match=message), locked(path, "mine", seconds=0.05):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    with locked(path, "mine", seconds=10):
        assert path.read_text().endswith(", mine")
        with pytest.raises(WriteError, match="mine"), locked(path, "again", seconds=0.05):
            pass  # threads of one process exclude each other, too


def test_a_full_disk_is_freed(homes: Homes, monkeypatch: pytest.MonkeyPatch):
    upload()
    derived.create("old", FILES)

    def write(number: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ggmodel.storage.os.write", write)
        derived.delete("old")
    assert not derived._entry_of("old").path.exists()


def test_a_model_that_is_made_beside_a_removal_is_whole(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
):
    """It is made between a removal's look at the others and its end."""
    upload()
    derived.create("old", FILES)
    manifests, results = derived._manifests, list[object]()

    def create() -> None:
        try:
            results.append(derived.create("new", FILES))
        except ModelNotFound as error:  # its file has gone
            results.append(error)

    creator = threading.Thread(target=create)

    def slow() -> list[Path]:
        before = manifests()
        if not creator.ident:
            creator.start()
            creator.join(0.3)
        return before

    monkeypatch.setattr(derived, "_manifests", slow)
    derived.delete("old")
    creator.join(30)
    if isinstance(results[0], ModelNotFound):
        assert not derived._entry_of("new").path.exists()
    else:
        assert find_stored("new") == results[0]


def test_pairs_of_writers():
    """A sample of `make pairs`: each writer is a process."""
    command = ["-m", "tests.kills.pairs", "--count", "4", "--seed", "7", "--models", "20"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing was lost\n")
