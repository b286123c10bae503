"""A control vector that is made here steers llama.cpp as it steers ggmodel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import ggmodel
from ggmodel.workbench.inside import save_steering, steering_vector
from tests.documents import ROOT

PROGRAM = ROOT / ".cache" / "peer" / "bin" / "llama-completion"
STORIES = ROOT / "examples" / "assets" / "stories.gguf"
PROMPT = "Once upon a time"


@pytest.mark.skipif(not PROGRAM.is_file(), reason="llama-completion is not built")
def test_llama_cpp_is_steered_alike(tmp_path: Path):
    path = tmp_path / "mood.gguf"
    with ggmodel.load(STORIES) as model:
        made = steering_vector(model, ["A happy dog", "The glad girl"], ["A sad dog"])
        save_steering(path, made, "llama")
    answers = set()
    for strength in (0, 0.5, 1):
        command = [
            *(PROGRAM, "-m", STORIES, "-p", PROMPT, "-n", "24", "--temp", "0", "-no-cnv"),
            *("-t", "1", "--control-vector-scaled", f"{path}:{strength}"),
        ]
        variables = {**os.environ, "LD_LIBRARY_PATH": str(PROGRAM.parent)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=variables, check=True
        )
        with ggmodel.load(STORIES, steer=f"{path}:{strength}") as model:
            answer = model.generate(PROMPT, max_tokens=24, temperature=0)
        # llama-completion may end before its log's thread has written the last pieces.
        theirs, ours = done.stdout.strip(), PROMPT + answer
        assert ours.startswith(theirs) and len(theirs) > len(ours) // 2
        answers.add(str(answer))
    assert len(answers) > 1
