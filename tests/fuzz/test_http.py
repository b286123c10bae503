"""The fuzzer of the server notices what must not happen, and names the request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fuzz import reproducer
from tests.fuzz.http.faulty import FaultyHttp
from tests.fuzz.parent import Children

FAULTS = {
    "block": r"^(/health|/v1/models|/tokenize|token) waits for POST /",
    "error": r"^status 500: POST /",
    "forget": r"^in the log: KeyError",
    "leak": r"^growth",
    "leave": r"^the server ended|^the server does not answer",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("GGMODEL_FUZZ_FAULT", fault)
    result = Children(FaultyHttp, seed=1, cases=1).run()
    (found, *_) = result.findings.values()
    assert re.match(FAULTS[fault], found.title), found.title
    assert reproducer.save(tmp_path, FaultyHttp, 1, found).is_file()
