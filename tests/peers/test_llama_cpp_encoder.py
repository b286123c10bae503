"""T5 in llama.cpp, on the same file: the same answers. Its server leaves the encoder out, so that
a program of its library is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import ggmodel
from ggmodel.convert import convert
from tests.convert.folders import write_model
from tests.golden.files import load_golden
from tests.golden.t5.cases import VOCABULARY
from tests.peers.programs import Answers

GOLDEN = "t5/published"
WORDS = [(f"▁w{i}", -1.0 - i / 100) for i in range(VOCABULARY - 4)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our file of a golden; it computes greedy answers without the scale of logits."""
    golden, folder = load_golden(*GOLDEN.split("/")), tmp_path_factory.mktemp("t5")
    write_model(folder, golden.config, golden.weights())
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -9.0)]
    built = Tokenizer(models.Unigram([*special, *WORDS], 2, False))
    cut, words = pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()
    built.pre_tokenizer = pre_tokenizers.Sequence([cut, words])
    built.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    built.add_special_tokens(["<pad>", "</s>", "<unk>"])
    built.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    convert(folder, folder / "t5.gguf", "f32")
    return folder / "t5.gguf"


@pytest.mark.parametrize(
    "prompt", ["w3 w40 w7", "w1", " ".join(f"w{31 * i % 89}" for i in range(25))]
)
def test_answers(answers: Answers, file: Path, prompt: str):
    with ggmodel.load(file, kv_type="f32", flash_attention="off", threads=1) as model:
        answer = str(model.generate(prompt, max_tokens=10, temperature=0))
    assert len(set(answer.split())) > 1
    assert answers.ask(file, prompt, 10).split() == answer.split()
