"""A few seconds of each fuzzer; `make fuzz` runs them longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzzer import Fuzzer, seeded
from tests.fuzz.gguf.corpus import models
from tests.fuzz.parent import Children
from tests.fuzz.registry import FUZZERS
from tests.golden.files import HERE

# Cases of each, a count, and the least it must be for each case: most are more than a refusal.
SHORT = {
    "gguf": (600, "opened", 0.1),
    "gguf-load": (20, "loaded", 0.1),
    "folders": (12, "loaded", 0.2),
    "images": (60, "opened", 0.1),
    "sounds": (60, "opened", 0.1),
    "templates": (60, "rendered", 0.05),
    "schemas": (60, "followed", 0.1),
    "ops": (100, "computed programs", 0.5),
    "ops-equal": (10, "ops", 1.0),
    "ops-threads": (6, "calls", 1.0),
    "requests": (4, "requests", 4.0),
    "answers": (60, "answered", 0.05),
    "questions": (40, "ended", 1.0),
    "workers": (20, "checked", 1.0),
    "http": (2, "4xx", 20.0),
}


@pytest.mark.parametrize("fuzzer", FUZZERS, ids=lambda fuzzer: fuzzer.name)
def test_nothing_is_found(fuzzer: type[Fuzzer]):
    cases, counted, share = SHORT[fuzzer.name]
    result = Children(fuzzer, seed=1, cases=cases).run()
    assert not result.findings, "\n\n".join(f.title + f.text for f in result.findings.values())
    assert result.cases == cases
    assert result.counts[counted] >= share * cases, result.counts
    assert (result.refused > 0) == (fuzzer.legal != () and fuzzer.name not in HANDLES)


# Fuzzers that look at errors themselves.
HANDLES = ("images", "sounds", "ops", "ops-threads")


@pytest.mark.parametrize("fuzzer", FUZZERS, ids=lambda fuzzer: fuzzer.name)
def test_a_case_follows_from_its_number(tmp_path: Path, fuzzer: type[Fuzzer]):
    first, second = (seeded(fuzzer(tmp_path), 5, 17) for _ in range(2))
    assert first == second
    assert first != seeded(fuzzer(tmp_path), 5, 18)


def test_every_architecture_is_damaged():
    names = {model.name.partition("/")[0] for model in models()}
    assert names >= {path.parent.name for path in HERE.glob("*/cases.py")}
    assert {"gemma3 pair", "llama4 pair", "stories", "shapes"} <= names
    assert sum(len(model.files) > 1 and model.mmproj is None for model in models()) == 3
