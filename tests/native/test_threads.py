"""The pool of compute threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ggmodel.errors import NativeError
from ggmodel.native import ThreadPool, ffi, lib

# In a new process: here threads of earlier tests may end at any time.
# The system drops a thread from the list a moment after it was joined.
HUNDRED = """
import os, time
from ggmodel.native import ThreadPool, ffi

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
for _ in range(100):
    pool = ThreadPool(3)
    assert threads() == before + 2
    pool.close()
    pool.close()
    assert pool.handle == ffi.NULL
    end = time.monotonic() + 10
    while threads() != before:
        assert time.monotonic() < end, (threads(), before)
        time.sleep(0.0001)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_open_and_close_a_hundred_times() -> None:
    done = subprocess.run([sys.executable, "-c", HUNDRED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_closed_pool_is_refused() -> None:
    pool = ThreadPool(1)
    pool.close()
    device = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    backend = lib.ggml_backend_dev_init(device, ffi.NULL)
    with pytest.raises(NativeError, match="closed"):
        pool.attach(backend)
    lib.ggml_backend_free(backend)


@pytest.mark.parametrize("n_threads", [-1, 0, 513])
def test_impossible_numbers_of_threads(n_threads: int) -> None:
    with pytest.raises(NativeError, match=f"1 to 512 threads, not {n_threads}"):
        ThreadPool(n_threads)
