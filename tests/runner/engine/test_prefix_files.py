"""The files of a prefix store: damaged, cut, killed, without room, and shared by processes."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.runner.engine import prefix_files
from ggmodel.runner.engine.prefix_files import PrefixFiles
from tests.runner.engine.hammer import hammered

GIB = 2**30
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="signals and limits as Linux has them")


@pytest.fixture
def files(tmp_path: Path) -> PrefixFiles:
    return PrefixFiles(tmp_path / "store", GIB)


def arrays(seed: int, rows: int = 3) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [
        random.integers(0, 99, rows).astype(np.int32),
        random.integers(0, 2, rows).astype(np.bool_),
        random.integers(0, 256, (rows, 8), np.uint8),
        np.zeros((0, 8), np.uint8),
    ]


def same(got: list[np.ndarray] | None, want: list[np.ndarray]) -> bool:
    return got is not None and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(got, want, strict=True)
    )


def test_what_was_written_is_read(files: PrefixFiles):
    assert files.write("m/a.0", arrays(1)) and files.has("m/a.0")
    assert same(files.read("m/a.0"), arrays(1))
    assert files.write("m/b.0", []) and files.read("m/b.0") == []
    assert files.read("m/c.0") is None and not files.has("m/c.0")


def test_every_damaged_byte_is_noticed(files: PrefixFiles):
    files.write("m/a.0", arrays(1))
    path = files.folder / "m/a.0"
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ (1 + i % 255)]) + whole[i + 1 :])
        assert files.read("m/a.0") is None
        assert not path.exists()  # it will be written anew
    for cut in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
        path.write_bytes(cut)
        assert files.read("m/a.0") is None
    path.write_bytes(whole)
    assert same(files.read("m/a.0"), arrays(1))


def test_a_file_under_another_name_is_none(files: PrefixFiles):
    files.write("m/a.0", arrays(1))
    os.rename(files.folder / "m/a.0", files.folder / "m/b.0")
    assert files.read("m/b.0") is None


def test_those_used_longest_ago_are_removed(tmp_path: Path):
    files = PrefixFiles(tmp_path, 10 * 4096)
    for i in range(10):
        assert files.write(f"m/{i}.0", arrays(i))
        os.utime(tmp_path / f"m/{i}.0", ns=(i, i))
    files.touch(["m/1.0", "m/0.0"])
    assert files.write("m/x.0", arrays(9))
    left = {path.name for path in (tmp_path / "m").iterdir()}
    assert {"0.0", "1.0", "x.0", "9.0"} <= left and "2.0" not in left
    assert len(left) <= 10
    assert not files.write("m/y.0", [np.zeros((1, 20 * 4096), np.uint8)])  # larger than all


def test_what_others_wrote_counts(tmp_path: Path):
    files, others = PrefixFiles(tmp_path, 20 * 4096), PrefixFiles(tmp_path, 20 * 4096)
    for i in range(60):
        assert (files, others)[i % 2].write(f"m/{i}.0", arrays(i))
        assert len(list((tmp_path / "m").iterdir())) <= 24  # counted anew after an eighth
    assert files.removed and others.removed


def test_leftovers_are_removed(files: PrefixFiles):
    files.write("m/a.0", arrays(1))
    old, new = files.folder / "m/1.part", files.folder / "m/2.part"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (0.0, 0.0))
    PrefixFiles(files.folder, GIB).write("m/b.0", arrays(2))
    assert not old.exists() and new.exists()


def test_a_full_disk(files: PrefixFiles, monkeypatch: pytest.MonkeyPatch):
    def full(number: int, data: Any) -> None:
        os.write(number, data[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(prefix_files, "_write", full)
        assert not files.write("m/a.0", arrays(1))
        assert not list(files.folder.glob("m/*"))
    assert files.write("m/a.0", arrays(1)) and same(files.read("m/a.0"), arrays(1))


def test_no_more_than_what_is_free(files: PrefixFiles, monkeypatch: pytest.MonkeyPatch):
    usage = prefix_files.shutil.disk_usage(files.folder)
    monkeypatch.setattr(prefix_files.shutil, "disk_usage", lambda _: usage._replace(free=4 * 4096))
    assert files.write("m/a.0", arrays(1))
    assert not files.write("m/b.0", [np.zeros((4, 4096), np.uint8)])


def test_a_folder_that_is_gone(files: PrefixFiles):
    files.write("m/a.0", arrays(1))
    for path in files.folder.rglob("*.0"):
        path.unlink()
    (files.folder / "m").rmdir()
    assert files.read("m/a.0") is None
    assert files.write("m/a.0", arrays(1))
    files.folder.chmod(0o700)


_LIMITED = """
import resource, sys
import numpy as np
from pathlib import Path
from ggmodel.runner.engine.prefix_files import PrefixFiles
files = PrefixFiles(Path(sys.argv[1]), 2**30)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
print(files.write("m/a.0", [np.zeros((4, 4096), np.uint8)]), files.write("m/b.0", []))
"""


@LINUX
def test_a_limit_of_file_sizes(tmp_path: Path):
    ran = subprocess.run(
        [sys.executable, "-c", _LIMITED, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout.strip(), ran.returncode) == ("False True", 0), ran.stderr
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["b.0"]


_WRITING = """
import sys
from pathlib import Path
from ggmodel.runner.engine.prefix_files import PrefixFiles
from tests.runner.engine.test_prefix_files import arrays
files = PrefixFiles(Path(sys.argv[1]), 64 * 4096)
print("begun", flush=True)
i = 0
while True:
    i += 1
    files.write(f"m/{i}.0", arrays(i, rows=500))
"""


@LINUX
def test_killed_writers_leave_nothing_wrong(tmp_path: Path):
    chance, checked = random.Random(1), 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", _WRITING, tmp_path], stdout=-1) as child:
            assert child.stdout is not None and child.stdout.readline() == b"begun\n"
            time.sleep(0.05 + chance.random() / 10)
            child.send_signal(signal.SIGKILL)
        files = PrefixFiles(tmp_path, 64 * 4096)
        for path in tmp_path.glob("m/*.0"):
            assert same(files.read(f"m/{path.name}"), arrays(int(path.stem), rows=500))
            checked += 1
        assert files.write("m/0.0", arrays(0, rows=500))
    assert checked > 3


def test_several_processes(tmp_path: Path):
    """A small part of what `python -m tests.runner.engine.hammer` does."""
    result = hammered(tmp_path, processes=2, prompts=60, limit=1 << 20)
    assert result.prompts == 60 and result.wrong == 0 and result.found > 10
