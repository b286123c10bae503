"""The skill for agents, .agents/skills/port-a-model: its commands, on two models.

The results of the commands that need torch are kept: those of granite with the tutorial's, those of
the other in qwen3/.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ggmodel.workbench import golden
from tests.convert.folders import write_model, write_tokenizer
from tests.docs.test_tutorial import run
from tests.documents import ROOT, read

SKILL = ".agents/skills/port-a-model/SKILL.md"
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", read(SKILL), re.MULTILINE | re.DOTALL)
MODELS = {"granite": ROOT / "tests/docs/granite", "qwen3": ROOT / "tests/docs/qwen3"}


def checkpoint(name: str, folder: Path) -> Path:
    """A tiny checkpoint with a tokenizer, of weights that follow from their names."""
    case = golden.Golden.load(MODELS[name] / "plain.npz")
    case.folder = folder / "rule"  # the common rule for weights
    weights = {name: golden.weight(name, shape) for name, shape in case.tensors.items()}
    tiny = write_model(folder / "tiny", case.config, weights)
    write_tokenizer(tiny, case.config["vocab_size"])
    return tiny


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_its_commands_prove_a_model(name: str, tmp_path: Path):
    checkpoint(name, tmp_path)
    said = dict[str, str]()
    for block in COMMANDS:
        for line in block.splitlines():
            line = line.replace("$NAME", name).replace("$HF", "tiny")
            said[line.split()[1]] = run(line, tmp_path, MODELS[name])
    assert said.keys() == {"new", "golden", "diff", "check", "convert", "certify", "run"}
    assert "agrees with its reference" in said["diff"]
    assert said["golden"].count(" equal") >= 4 and "DIFFERS" not in said["golden"]
    assert f"{name}.gguf is tiny, in all that was compared" in said["certify"]


def test_it_is_found_by_agents():
    head, _, text = read(SKILL).removeprefix("---\n").partition("---\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert fields.keys() == {"name", "description"} and fields["name"] == Path(SKILL).parent.name
    assert len(fields["description"]) <= 1024 and len(text.splitlines()) < 500
    assert SKILL in read("AGENTS.md")
