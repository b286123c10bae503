"""Pages: cleared buffers are zero to the last byte, and reading ahead changes nothing."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.ml.ggml import pages
from ggmodel.native import ffi, lib

PAGE = mmap.PAGESIZE


@pytest.fixture(params=[64, PAGE - 64, PAGE, 5 * PAGE + 192])
def buffer(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Memory of the CPU, all of it written."""
    made = lib.ggml_backend_buft_alloc_buffer(lib.ggml_backend_cpu_buffer_type(), request.param)
    values(made)[:] = 0xA5
    yield made
    lib.ggml_backend_buffer_free(made)


def values(buffer: Any) -> np.ndarray:
    base = lib.ggml_backend_buffer_get_base(buffer)
    return np.frombuffer(ffi.buffer(base, lib.ggml_backend_buffer_get_size(buffer)), np.uint8)


def test_a_cleared_buffer_is_zero(buffer: Any):
    pages.clear(buffer)
    assert not values(buffer).any()
    values(buffer)[:] = 0x5A  # and can be written
    assert (values(buffer) == 0x5A).all()


def test_it_is_zero_where_the_system_gives_no_pages_back(
    buffer: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pages, "_advise", lambda *_: False)
    pages.clear(buffer)
    assert not values(buffer).any()


def test_its_neighbours_stay():
    """A buffer that shares its first and last page with others."""
    kind = lib.ggml_backend_cpu_buffer_type()
    made = [lib.ggml_backend_buft_alloc_buffer(kind, 3 * PAGE + 64) for _ in range(9)]
    for one in made:
        values(one)[:] = 0xA5
    pages.clear(made[4])
    assert [values(one).any() for one in made] == [True] * 4 + [False] + [True] * 4
    assert all((values(one) == 0xA5).all() for one in made[:4] + made[5:])
    for one in made:
        lib.ggml_backend_buffer_free(one)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")
def test_a_cleared_buffer_takes_no_memory_until_it_is_written():
    size = 64 << 20
    made = lib.ggml_backend_buft_alloc_buffer(lib.ggml_backend_cpu_buffer_type(), size)
    before = resident()
    values(made)[:] = 1
    full = resident()
    pages.clear(made)
    cleared = resident()
    lib.ggml_backend_buffer_free(made)
    # Other threads of the process may take or give a little.
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
        pages.read_ahead(part)
    assert bytes(view) == data
    del part
    view.release()
    mapping.close()
