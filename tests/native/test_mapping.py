"""A mapping whose file shrinks reads as zeros; other bus errors go where they went before."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from ggmodel.native.mapping import FileMapping, Watch

_SIZE = 1 << 20

# Each part is a line of a program; `mapped` is guarded, `other` is not.
_START = """
import faulthandler, mmap, os, signal, sys
from ggmodel.native.mapping import FileMapping

path = sys.argv[1]
file = open(path, "rb")
"""
_MAP = "mapped = FileMapping(file.fileno(), os.path.getsize(path))\n"
_OTHER = "other = mmap.mmap(file.fileno(), os.path.getsize(path), access=mmap.ACCESS_READ)\n"
_SHRINK = "os.truncate(path, 100)\n"
_READ = """
assert mapped[0] == 1 and mapped[50_000] == 0 and mapped.changed
print("read", flush=True)
"""
_ENABLE, _DISABLE = "faulthandler.enable()\n", "faulthandler.disable()\n"
_AGAIN = "assert not mapped.changed\n"
_READ_OTHER = "other[50_000]\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(b"\1" * _SIZE)
    return found


def run(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _START + program, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "program",
    [
        _MAP + _SHRINK + _READ,
        _ENABLE + _MAP + _SHRINK + _READ,
        _MAP + _ENABLE + _AGAIN + _SHRINK + _READ,
        _ENABLE + _MAP + _DISABLE + _AGAIN + _SHRINK + _READ,
        _MAP + _ENABLE + _AGAIN + _DISABLE + _ENABLE + _AGAIN + _SHRINK + _READ,
        "signal.signal(signal.SIGBUS, lambda *_: None)\n" + _MAP + _SHRINK + _READ,
        _MAP + "pid = os.fork()\n" + _SHRINK + _READ + "pid and os.waitpid(pid, 0)\n",
    ],
)
def test_lost_pages_read_as_zeros(path: Path, program: str):
    done = run(program, path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "read" in done.stdout


@pytest.mark.parametrize(
    ("program", "reports"),
    [
        (_MAP, 0),
        (_ENABLE + _MAP, 1),
        (_MAP + _ENABLE + _AGAIN, 1),
        (_MAP + _ENABLE + _AGAIN + _DISABLE, 0),
        (_ENABLE + _MAP + _DISABLE + _AGAIN, 0),
        (_ENABLE + _MAP + _DISABLE + _AGAIN + _ENABLE + _AGAIN, 1),
        ("signal.signal(signal.SIGBUS, signal.SIG_IGN)\n" + _MAP, 0),
    ],
)
def test_other_bus_errors_end_the_process_as_before(path: Path, program: str, reports: int):
    done = run(program + _OTHER + _SHRINK + _READ + _READ_OTHER, path)
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == "read\n"
    assert done.stderr.count("Fatal Python error: Bus error") == reports


def test_a_signal_that_was_sent_reaches_the_handler_before(path: Path):
    handler = "signal.signal(signal.SIGBUS, lambda *_: print('handled', flush=True))\n"
    send = "os.kill(os.getpid(), signal.SIGBUS)\n"
    assert run(handler + _MAP + send, path).stdout == "handled\n"
    assert run(_MAP + send, path).returncode == -signal.SIGBUS
    ignored = run("signal.signal(signal.SIGBUS, signal.SIG_IGN)\n" + _MAP + send, path)
    assert ignored.returncode == 0


def test_an_ended_mapping_is_no_longer_guarded(path: Path):
    program = _MAP + "view = memoryview(mapped); mapped.close(); del mapped, view\n" + _OTHER
    done = run(program + _SHRINK + _READ_OTHER, path)
    assert done.returncode == -signal.SIGBUS


def mapped(path: Path) -> tuple[FileMapping, int]:
    fd = os.open(path, os.O_RDONLY)
    return FileMapping(fd, os.path.getsize(path)), fd


def test_many_threads_lose_pages_of_many_files(tmp_path: Path):
    paths = [tmp_path / str(i) for i in range(40)]
    for path in paths:
        path.write_bytes(b"\1" * _SIZE)
    found = [mapped(path) for path in paths]
    start = threading.Barrier(8, timeout=60)
    wrong: list[object] = []

    def read(number: int) -> None:
        start.wait()
        for i, (mapping, _) in enumerate(found):
            if number == 0:
                os.truncate(paths[i], 4096 * i)
            values = np.frombuffer(mapping, np.uint8)
            for at in range(number, _SIZE, 4096):
                if values[at] not in (0, 1):
                    wrong.append((i, at))

    threads = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []
    for i, (mapping, fd) in enumerate(found):
        assert mapping.changed
        values = np.frombuffer(mapping, np.uint8)
        assert values.sum() == 4096 * i
        del values
        os.close(fd)


def test_an_overwritten_file_has_changed(path: Path):
    mapping, fd = mapped(path)
    assert not mapping.changed
    with open(path, "r+b") as file:
        file.write(b"\2")
    assert mapping.changed
    os.close(fd)


@pytest.mark.parametrize("size", [1, 4095, 4097, 70_000, _SIZE])
def test_a_touched_file_has_not(path: Path, size: int, caplog: pytest.LogCaptureFixture):
    os.truncate(path, size)
    mapping, fd = mapped(path)
    for time in range(3):
        os.utime(path, (time, time))
        assert not mapping.changed
    assert len(caplog.records) == 1
    path.write_bytes(b"\1" * size)  # by itself
    assert not mapping.changed
    with open(path, "r+b") as file:
        file.seek(size - 1)
        file.write(b"\2")
    assert mapping.changed
    path.write_bytes(b"\1" * size)
    assert mapping.changed
    os.close(fd)


def test_a_file_that_is_overwritten_by_another_of_its_size_has(path: Path):
    start = b"\1" * 100_000  # such as equal metadata
    mapping, fd = mapped(path)
    with open(path, "r+b", buffering=0) as file:
        file.write(start)
        assert not mapping.changed
        for at in range(len(start), _SIZE, 1 << 16):
            file.write(b"\2" * min(1 << 16, _SIZE - at))
    assert mapping.changed
    os.close(fd)


def test_mappings_are_asked_together(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    paths = [tmp_path / str(i) for i in range(3)]
    for path in paths:
        path.write_bytes(b"\1" * _SIZE)
        os.utime(path, (1, 1))
    found = [mapped(path) for path in paths]
    watch = Watch(mapping for mapping, _ in found)
    assert not Watch(()).changed
    assert not watch.changed
    os.utime(paths[1])
    assert not watch.changed
    assert len(caplog.records) == 1
    os.utime(paths[1], (2, 2))
    os.truncate(paths[2], 5)
    assert watch.changed
    assert [mapping.changed for mapping, _ in found] == [False, False, True]
    for _, fd in found:
        os.close(fd)


def test_a_watched_mapping_ends_with_its_last_reference(path: Path):
    mapping, fd = mapped(path)
    watch, gone = Watch((mapping,)), weakref.ref(mapping)
    assert not watch.changed
    del mapping, watch
    assert gone() is None  # without a collection of cycles
    os.close(fd)


def test_a_replaced_file_has_not(path: Path, tmp_path: Path):
    mapping, fd = mapped(path)
    (tmp_path / "new").write_bytes(b"\2" * 10)
    os.replace(tmp_path / "new", path)
    assert not mapping.changed
    assert mapping[:] == b"\1" * _SIZE
    os.close(fd)


def test_guards_are_used_again(path: Path):
    fd = os.open(path, os.O_RDONLY)
    ranges = set()
    for _ in range(1000):
        mapping = FileMapping(fd, _SIZE)
        ranges.add(int(str(mapping._range).split()[-1].rstrip(">"), 16))
        del mapping
        gc.collect(0)
    assert len(ranges) < 20
    os.close(fd)
