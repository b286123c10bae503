"""The second run of tests that failed, as CI begins it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import import_path

ROOT = Path(__file__).parents[2]
FILE = "tests/tokenizer/test_errors.py"


@pytest.mark.slow
def test_several_processes_run_again_what_failed_alone(tmp_path: Path):
    """An option of the environment reaches the processes that share the tests; all of them run,
    though a row has a share of the cases of a test."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={tmp_path}", FILE]
    environment = os.environ | {"PYTHONPATH": import_path()}
    listed = subprocess.run(
        [*command, "--collect-only", "-q"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    lines = [line for line in listed.stdout.splitlines() if "[" in line]
    test = lines[0].partition("[")[0]
    cases = [line for line in lines if line.partition("[")[0] == test][:5]
    failed = tmp_path / "v" / "cache" / "lastfailed"
    failed.parent.mkdir(parents=True, exist_ok=True)
    failed.write_text(json.dumps(dict.fromkeys(cases, True)))
    done = subprocess.run(
        [*command, "--rows", "3", "--numprocesses", "2", "--dist", "loadfile"],
        cwd=ROOT,
        env=environment | {"PYTEST_ADDOPTS": "--last-failed --last-failed-no-failures=none"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert len(cases) > 2
    assert f" {len(cases)} passed in" in done.stdout.splitlines()[-1], done.stdout + done.stderr


@pytest.mark.slow
def test_what_a_lost_process_left_is_not_said_to_have_run(tmp_path: Path):
    """The end of a process within a test fails that test once; the rest of its file has not run,
    so a second run of the failed test alone would prove nothing."""
    (tmp_path / "test_ends.py").write_text(
        "import os\ndef test_ends(): os._exit(1)\ndef test_not(): 0"
    )
    (tmp_path / "test_fails.py").write_text("def test_fails(): assert 0")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(tmp_path)]
    command += ["--numprocesses", "2", "--dist", "loadfile", "--max-worker-restart", "0"]
    cache = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    failed = []
    for files in (["test_fails.py"], ["test_fails.py", "test_ends.py"]):
        done = subprocess.run(
            [*command, *files],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": import_path()},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert f"{len(files)} failed in" in done.stdout.splitlines()[-1], done.stdout + done.stderr
        failed.append(json.loads(cache.read_text()))
    assert failed == [{"test_fails.py::test_fails": True}, {}]
