"""Little memory costs an answer, never the process."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ggmodel import resources
from ggmodel.errors import Error, FormatError, OutOfMemory
from tests.shortage.sweep import sweep

# A sample: `python -m tests.shortage.sweep` tries every percent.
_STEPS = {"start": 10.0, "import": 40.0, "load": 32.0}
_MOST = 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems hardly bound address space")
@pytest.mark.parametrize("moment", _STEPS)
def test_a_process_lives_under_every_limit(moment: str):
    found = list(sweep(moment, _STEPS[moment], _MOST))
    assert [one for one in found if not one.lived] == []
    assert not found[0].answered
    assert found[-1].answered


def raising(error: BaseException) -> Callable[[], None]:
    @resources.reported
    def function() -> None:
        raise error

    return function


def chained(error: ImportError, cause: BaseException) -> ImportError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 2 GiB"),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("lib.so: failed to map segment from shared object"),
        ImportError("lib.so: cannot allocate memory in static TLS block"),
        chained(ImportError("numpy failed to import"), MemoryError()),
    ],
)
def test_shortage_has_one_name(error: BaseException):
    with pytest.raises(OutOfMemory, match="memory ran out") as raised:
        raising(error)()
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("another"),
        OSError(errno.ENOENT, "No such file"),
        ImportError("no module named x"),
        chained(ImportError("x"), ValueError()),
        OutOfMemory("with a report"),
        FormatError("x"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_stay(error: BaseException):
    with pytest.raises(type(error)) as raised:
        raising(error)()
    assert raised.value is error


def test_room_that_cannot_be():
    resources.need_room(1 << 20, "a thing")
    with pytest.raises(OutOfMemory, match="bytes for a thing do not fit in memory"):
        resources.need_room(1 << 60, "a thing")


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch):
    import ggmodel

    path = Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf"
    start = threading.Thread.start
    refused: set[str] = set()

    def refuse(self: threading.Thread) -> None:
        if any(self.name.startswith(name) for name in refused):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for name in ("ggmodel-read-ahead", "ggmodel-vocabulary"):
        refused.add(name)
        with pytest.raises(OutOfMemory, match="can't start new thread"):
            ggmodel.load(path, context_length=64)
        refused.clear()
    refused.add("ggmodel-engine")
    with ggmodel.load(path, context_length=64) as model:
        for _ in range(2):
            with pytest.raises(OutOfMemory, match="can't start new thread"):
                model.generate("A bear", max_tokens=1)
        refused.clear()
        assert model.generate("A bear", max_tokens=2)


def test_numpy_is_left_alone_without_a_limit():
    code = (
        "import os, sys, ggmodel; ggmodel.load; "
        "assert 'numpy' in sys.modules and 'OPENBLAS_NUM_THREADS' not in os.environ"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_errors_name_what_to_do():
    error = resources.as_error(MemoryError("x" * 1000))
    assert isinstance(error, Error)
    assert len(str(error)) < 500 and "context_length" in str(error) and "ulimit" in str(error)
