"""Pages: cleared buffers are zero to the last byte, and reading ahead changes nothing."""

from __future__ import annotations

import mmap
import platform
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.gguf_file import DType, MemorySource, TensorInfo
from ggmodel.ml.ggml import transfer
from ggmodel.native import ffi, lib

PAGE = mmap.PAGESIZE


@pytest.fixture(params=[64, PAGE - 64, PAGE, 5 * PAGE + 192])
def buffer(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Memory of the CPU, completely written."""
    made = lib.ggml_backend_buft_alloc_buffer(lib.ggml_backend_cpu_buffer_type(), request.param)
    values(made)[:] = 0xA5
    yield made
    lib.ggml_backend_buffer_free(made)


def values(buffer: Any) -> np.ndarray:
    base = lib.ggml_backend_buffer_get_base(buffer)
    return np.frombuffer(ffi.buffer(base, lib.ggml_backend_buffer_get_size(buffer)), np.uint8)


def test_a_cleared_buffer_is_zero(buffer: Any):
    transfer.clear(buffer)
    assert not values(buffer).any()
    values(buffer)[:] = 0x5A  # and can be written
    assert (values(buffer) == 0x5A).all()


def test_it_is_zero_where_the_system_gives_no_pages_back(
    buffer: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transfer, "_advise", lambda *_: False)
    transfer.clear(buffer)
    assert not values(buffer).any()


def test_its_neighbours_stay():
    """A buffer that shares its first and last page with others."""
    kind = lib.ggml_backend_cpu_buffer_type()
    made = [lib.ggml_backend_buft_alloc_buffer(kind, 3 * PAGE + 64) for _ in range(9)]
    for one in made:
        values(one)[:] = 0xA5
    transfer.clear(made[4])
    assert [values(one).any() for one in made] == [True] * 4 + [False] + [True] * 4
    assert all((values(one) == 0xA5).all() for one in made[:4] + made[5:])
    for one in made:
        lib.ggml_backend_buffer_free(one)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")
@pytest.mark.alone
def test_a_cleared_buffer_takes_no_memory_until_it_is_written():
    size = 64 << 20
    made = lib.ggml_backend_buft_alloc_buffer(lib.ggml_backend_cpu_buffer_type(), size)
    before = resident()
    values(made)[:] = 1
    full = resident()
    transfer.clear(made)
    cleared = resident()
    lib.ggml_backend_buffer_free(made)
    # Other threads of the process may allocate or free a little.
    assert full - before > size * 0.9
    assert cleared - before < size * 0.1


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_reading_ahead_leaves_a_file_as_it_is(tmp_path: Path):
    data = np.random.default_rng(0).bytes(3 * PAGE + 100)
    path = tmp_path / "data"
    path.write_bytes(data)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(mapping)
    for part in (view, view[100:], view[PAGE + 1 : PAGE + 2], view[:0]):
        transfer.populate(part)
    assert bytes(view) == data
    del part
    view.release()
    mapping.close()


@pytest.mark.skipif(
    sys.platform != "linux" or [*map(int, platform.release().split(".")[:2])] < [5, 14],
    reason="Linux reads many pages at once since 5.14",
)
def test_what_was_read_ahead_is_in_memory(tmp_path: Path):
    path, size = tmp_path / "data", 32 << 20
    path.write_bytes(bytes(size))
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    before = resident()
    transfer.populate(memoryview(mapping))
    assert resident() - before > 0.9 * size
    mapping.close()


class Mapped(MemorySource):
    """Two files of 5000 bytes each."""

    def __init__(self):
        super().__init__({}, {})
        self.views = [memoryview(bytes([n]) * 5000) for n in range(2)]

    def mapped(self, file: int) -> memoryview:
        return self.views[file]


def tensor(file: int, offset: int, nbytes: int) -> TensorInfo:
    return TensorInfo(f"{file}.{offset}", (nbytes,), DType.I8, nbytes, file, offset)


def test_neighbours_are_read_together_in_the_order_of_the_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transfer, "_GAP", 100)
    monkeypatch.setattr(transfer, "_PIECE", 1500)
    tensors = [
        tensor(1, 64, 100),
        tensor(0, 2064, 500),
        tensor(0, 64, 1900),
        tensor(0, 4000, 10),
        tensor(1, 200, 50),
    ]
    found = transfer.pieces(Mapped(), tensors)
    assert [(view[0], view.nbytes) for view in found] == [(0, 1500), (0, 1000), (0, 10), (1, 186)]


class Slow:
    """Replaces `populate`: blocks the reader until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.begun, self.go = threading.Event(), threading.Event()
        self.read = 0
        monkeypatch.setattr(transfer, "populate", self)

    def __call__(self, _: memoryview) -> None:
        self.begun.set()
        assert self.go.wait(10)
        self.read += 1


def test_reading_ahead_ends_at_the_piece_where_it_is_stopped(monkeypatch: pytest.MonkeyPatch):
    slow = Slow(monkeypatch)
    ahead = transfer.ReadAhead(Mapped(), [tensor(0, 0, 5000), tensor(1, 0, 5000)])
    assert slow.begun.wait(10)
    threading.Timer(0.05, slow.go.set).start()
    ahead.stop()
    assert slow.read == 1
    assert "ggmodel-read-ahead" not in {t.name for t in threading.enumerate()}
    ahead.stop()


def test_reading_ahead_reads_all_unless_stopped(monkeypatch: pytest.MonkeyPatch):
    slow = Slow(monkeypatch)
    slow.go.set()
    ahead = transfer.ReadAhead(Mapped(), [tensor(0, 0, 5000), tensor(1, 0, 5000)])
    ahead._thread.join(10)
    assert slow.read == 2


def test_a_file_stays_mapped_while_it_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "data"
    path.write_bytes(bytes(5000))
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    source = Mapped()
    source.views = [memoryview(mapping)]
    slow = Slow(monkeypatch)
    ahead = transfer.ReadAhead(source, [tensor(0, 0, 5000)])
    source.views.clear()
    assert slow.begun.wait(10)
    with pytest.raises(BufferError):
        mapping.close()
    slow.go.set()
    ahead.stop()
    mapping.close()


@pytest.mark.skipif(sys.platform != "linux", reason="pages are prepared on Linux only")
def test_prepared_memory_keeps_what_its_neighbours_hold():
    memory = mmap.mmap(-1, 64 * PAGE)
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
    memory[:] = b"x" * len(memory)
    for start, nbytes in ((0, len(memory)), (100, 3 * PAGE), (5, 10), (PAGE - 1, 2)):
        transfer.prepare(address + start, nbytes)
    assert memory[:] == b"x" * len(memory)
