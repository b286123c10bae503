"""The process that compiles grammars on trial: whatever happens to it, the next grammar works."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ggmodel
from ggmodel import Grammar
from ggmodel.errors import GrammarError
from ggmodel.runner.requests import grammar_guards
from ggmodel.runner.requests.grammar_guards import _Trials


def stopped(trials: _Trials) -> int:
    """The number of the process, which stands still."""
    assert trials._process is not None
    os.kill(trials._process.pid, signal.SIGSTOP)
    return trials._process.pid


def test_time_is_that_of_the_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggmodel.limits, "grammar_seconds", 0.3)
    Grammar.regex("before the stall")
    process = stopped(grammar_guards._trials)
    timer = threading.Timer(1.0, os.kill, (process, signal.SIGCONT))
    timer.start()
    Grammar.regex("during the stall")
    timer.join()


def test_a_stall_is_not_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggmodel.limits, "grammar_seconds", 0.1)
    Grammar.regex("before the long stall")
    stopped(grammar_guards._trials)
    with pytest.raises(GrammarError, match=r"busy machine|limits\.grammar_seconds"):
        Grammar.regex("during the long stall")
    monkeypatch.setattr(grammar_guards, "_BUSY_FACTOR", 100)
    Grammar.regex("during the long stall")


def program(folder: Path, text: str) -> str:
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o700)
    return str(file)


@pytest.mark.parametrize("kind", ["none", "empty", "frozen", "echo", "silent", "odd path"])
def test_without_a_python_small_grammars_work(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started = tmp_path / "started"
    programs: dict[str, Any] = {
        "none": None,
        "empty": "",
        "echo": "/bin/cat",
        "silent": program(tmp_path, f"echo once >> {started}\nexec sleep 60"),
    }
    if kind == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    elif kind == "odd path":
        monkeypatch.setattr(sys, "path", [*sys.path, "a\0b"])
    else:
        monkeypatch.setattr(sys, "executable", programs[kind])
    monkeypatch.setattr(grammar_guards, "_START", 1.0)
    trials = _Trials()
    monkeypatch.setattr("ggmodel.runner.requests.grammar.verdict", trials.verdict)
    try:
        for n in range(3):
            Grammar.regex(f"{kind} {n}")
            with pytest.raises(GrammarError, match="unclosed"):
                Grammar.regex(f"({kind} {n}")
        assert trials._process is None
    finally:
        trials.close()
    assert kind != "silent" or started.read_text() == "once\n"


def test_a_known_grammar_does_not_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggmodel.limits, "grammar_seconds", 20.0)
    Grammar.regex("known")
    process = stopped(grammar_guards._trials)
    waiting = threading.Thread(target=Grammar.regex, args=("not known",))
    waiting.start()
    try:
        deadline = time.monotonic() + 10
        while not grammar_guards._trials._lock.locked() and time.monotonic() < deadline:
            time.sleep(0.01)
        done = threading.Thread(target=Grammar.regex, args=("known",), daemon=True)
        done.start()
        done.join(5)
        assert not done.is_alive()
    finally:
        os.kill(process, signal.SIGCONT)
        waiting.join(20)
    assert not waiting.is_alive()
