"""A control vector that is made here steers llama.cpp as it steers ggmodel."""

from __future__ import annotations

from pathlib import Path

import ggmodel
from ggmodel.workbench.inside import save_steering, steering_vector
from tests.documents import ROOT
from tests.peers.programs import Answers

STORIES = ROOT / "examples" / "assets" / "stories.gguf"
PROMPT = "Once upon a time"


def test_llama_cpp_is_steered_alike(answers: Answers, tmp_path: Path):
    path = tmp_path / "mood.gguf"
    with ggmodel.load(STORIES) as model:
        made = steering_vector(model, ["A happy dog", "The glad girl"], ["A sad dog"])
        save_steering(path, made, "llama")
    options = {"kv_type": "f32", "flash_attention": "off", "threads": 1, "gpu_layers": 0}
    texts = set[str]()
    for strength in ("0", "0.5", "1"):
        with ggmodel.load(STORIES, steer=f"{path}:{strength}", **options) as model:
            answer = str(model.generate(PROMPT, max_tokens=24, temperature=0))
        assert answers.ask(STORIES, PROMPT, 24, path, strength) == answer
        texts.add(answer)
    assert len(texts) > 1
