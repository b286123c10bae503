"""`ggmodel run --receipt` and `ggmodel replay`."""

from __future__ import annotations

import json
from pathlib import Path

from .test_bad_input import refused


def test_an_answer_is_replayed(program, model_path: Path, tmp_path: Path):
    receipt = tmp_path / "receipt.json"
    given = ("--deterministic", "--seed", 4, "-n", 9, "--receipt", receipt)
    ran = program("run", model_path, "abc the", *given)
    assert ran.returncode == 0
    assert f"receipt: {receipt}" in ran.stderr
    assert len(json.loads(receipt.read_text())["tokens"]) == 9

    again = program("replay", receipt, "--model", model_path, "--threads", 1)
    assert (again.returncode, again.stdout) == (0, "the same bits: 9 tokens\n")

    values = json.loads(receipt.read_text())
    values["sums"][3] = "0" * 16
    receipt.write_text(json.dumps(values))
    other = program("replay", receipt, "--model", model_path, "--json")
    assert other.returncode == 1
    outcome = json.loads(other.stdout)
    assert (outcome["same"], outcome["first"]) == (False, 3)


def test_a_receipt_needs_the_mode(program, model_path: Path, tmp_path: Path):
    ran = program("run", model_path, "abc", "--receipt", tmp_path / "receipt.json")
    refused(ran, "--receipt goes with --deterministic")
