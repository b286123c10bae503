"""The environment of its own that schemathesis has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def schemathesis() -> Path:
    """The program."""
    found = os.environ.get("SCHEMATHESIS")
    program = Path(found) if found else ROOT / ".cache" / "schemathesis" / "bin" / "schemathesis"
    assert program.is_file(), f"there is no {program}: use `make test-schemas`, or set SCHEMATHESIS"
    return program
