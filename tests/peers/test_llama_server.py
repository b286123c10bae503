"""llama.cpp's own tests of llama-server, with `ggmodel serve` in its place.

Cases that need another thing than this server gives are in llama_server/failures.json.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.llama_server.suite import PASSES, copied, outcomes, reason


@pytest.fixture(scope="module")
def theirs(llama_cpp_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(llama_cpp_dir, tmp_path_factory.mktemp("llama.cpp"))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", sorted(PASSES))
def test_those_that_passed_pass(theirs: Path, file: str):
    found, said = outcomes(theirs, file, PASSES[file])
    failed = [one for one in PASSES[file] if found.get(one) != "passed"]
    assert not failed, f"{failed}\n{said[-8000:]}"
    unknown = [one for one, outcome in found.items() if outcome == "left out" and not reason(one)]
    assert not unknown, f"neither in passes.json nor in failures.json: {unknown}"


def test_how_many_pass():
    known = [one for tests in PASSES.values() for one in tests]
    assert len(known) == len(set(known)) >= 225
